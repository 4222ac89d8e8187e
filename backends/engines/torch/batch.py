"""The rows that are decoded together, one for each running sample."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.engines.torch.cache import Prompts, RowCache
from backends.engines.torch.model import BLOCK, CausalModel, round_up
from backends.engines.torch.sampling import Laws
from backends.engines.torch.streams import stream_key, uniforms
from protocols.inference import Completion, GenerateRequest, SampleRequest, Segment
from protocols.messages import WeightVersion

NO_TOKEN = -1
HIDDEN = -math.inf
ROW = np.dtype(
    [
        ("position", np.int64),  # of the latest token, which the model has not read yet
        ("start", np.int64),  # length of the prompt
        ("end", np.int64),  # the last position there may be
        ("key", np.uint64),  # of the random stream
        ("top_k", np.int64),
        ("top_p", np.float32),
        ("temperature", np.float32),
    ]
)


@dataclass(eq=False)
class Call:
    """One generate request among the running ones; compared by identity. ``watched``: each token is told of."""

    request: GenerateRequest
    watched: bool = False


@dataclass(eq=False)
class Running:
    """One sample in a row.

    Attributes:
        call: Whose sample it is.
        sample: As asked.
        segments: Finished segments; the tokens behind them are the current weights'.
    """

    call: Call
    sample: SampleRequest
    segments: list[Segment] = field(default_factory=list)

    def close_segment(self, version: WeightVersion, tokens: int) -> None:
        """Account for all of ``tokens`` that no earlier segment holds."""
        fresh = tokens - sum(segment.count for segment in self.segments)
        if fresh:
            self.segments.append(Segment(version=version, count=fresh))


class Batch:
    """State of the running rows in arrays, so that a step costs a few array operations however many run.

    The rows are ``0 .. count - 1``; when some leave, the last ones take their places. A free row has
    position 0 and sees that slot alone, so it may pad the batch.

    Args:
        model: What computes.
        padded: Compute a multiple of ``BLOCK`` rows, real or not.
    """

    def __init__(self, model: CausalModel, *, padded: bool) -> None:
        self.running: list[Running] = []
        self._model = model
        self._padded = padded
        self._cache = RowCache()
        self._laws: Laws | None = None
        rows, slots = BLOCK, BLOCK
        self._rows = np.zeros(rows, ROW)
        self._tokens = np.zeros((rows, slots), dtype=np.int64)  # each token in the slot of its position
        self._logprobs = np.zeros((rows, slots), dtype=np.float32)
        self._mask = _padded(np.zeros((rows, 1), dtype=np.float32), (rows, slots), HIDDEN)
        self._stops = np.full((rows, 1), NO_TOKEN, dtype=np.int64)

    @property
    def count(self) -> int:
        """Number of running rows."""
        return len(self.running)

    def forward(self) -> Tensor:
        """Let the model read the latest token of every row; returns the logits behind it, ``[count, V]``."""
        count = self.count
        rows = round_up(count) if self._padded else count
        position = self._rows["position"][:rows]
        slots = round_up(int(position.max()) + 1)
        index, at = torch.arange(rows), torch.from_numpy(position)
        self._cache.aim(index, at, slots)
        tokens = torch.from_numpy(self._tokens[np.arange(rows), position, None])
        mask = torch.from_numpy(self._mask[:rows, None, None, :slots])
        return self._model.decode(tokens, at[:, None], mask, self._cache)[:count]

    def join(self, calls: Sequence[Call], prompts: Prompts) -> NDArray[np.int64]:
        """Give every sample of ``calls`` a row behind the running ones.

        Args:
            calls: In the order in which their prompts were computed.
            prompts: Keys and values of the prompts.

        Returns:
            Which prompt each new row has, shape ``[new rows]``.
        """
        sizes = [len(call.request.samples) for call in calls]
        source = np.repeat(np.arange(len(calls)), sizes)
        first = self.count
        self._make_room(first + len(source), max(len(call.request.prompt_ids) for call in calls) + 1)
        self._cache.place(first, source, prompts, self._tokens.shape)
        for call in calls:
            self._fill(call)
        self._laws = None
        return source

    def draw(self, logits: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw the next token of every row from ``logits``, ``[count, V]``; returns ids and log-probabilities."""
        live = self._rows[: self.count]
        if self._laws is None:
            self._laws = Laws(live["temperature"], live["top_p"], live["top_k"])
        return self._laws.draw(logits, uniforms(live["key"], live["position"] + 1 - live["start"]))

    def advance(
        self, tokens: NDArray[np.int64], logprobs: NDArray[np.float32], version: WeightVersion
    ) -> list[tuple[Running, Completion]]:
        """Append a token to every row; rows that end with it leave.

        Args:
            tokens: What was drawn, shape ``[count]``.
            logprobs: Of the tokens, shape ``[count]``.
            version: The weights that drew it.

        Returns:
            The finished samples.
        """
        live, rows = self._rows[: self.count], np.arange(self.count)
        position = live["position"] + 1
        if int(position.max()) >= self._tokens.shape[1]:
            self._make_room(self.count, int(position.max()) + 1)
            live = self._rows[: self.count]
        live["position"] = position
        self._tokens[rows, position] = tokens
        self._logprobs[rows, position] = logprobs
        self._mask[rows, position] = 0
        stopped = (tokens[:, None] == self._stops[: self.count]).any(axis=1)
        ended = np.flatnonzero(stopped | (position >= live["end"]))
        if not ended.size:
            return []
        finished = [self._completion(row, version, stopped=bool(stopped[row])) for row in ended.tolist()]
        self._leave(ended)
        return finished

    def remove(self, calls: frozenset[Call]) -> None:
        """Take the rows of ``calls`` out."""
        gone = [row for row, running in enumerate(self.running) if running.call in calls]
        if gone:
            self._leave(np.array(gone))

    def close_segments(self, version: WeightVersion) -> None:
        """Attribute all tokens so far, before other weights than ``version`` make the next ones."""
        made = self._rows["position"][: self.count] + 1 - self._rows["start"][: self.count]
        for running, tokens in zip(self.running, made.tolist(), strict=True):
            running.close_segment(version, tokens)

    def _fill(self, call: Call) -> None:
        request, first = call.request, self.count
        self.running.extend(Running(call, sample) for sample in request.samples)
        rows, length = slice(first, self.count), len(request.prompt_ids)
        self._tokens[rows, :length] = request.prompt_ids
        self._mask[rows, :length] = 0
        sampling, fresh = request.sampling, self._rows[rows]
        fresh["position"] = length - 1
        fresh["start"] = length
        fresh["end"] = min(length + sampling.max_tokens, self._model.context) - 1
        fresh["key"] = [stream_key(sample.stream) for sample in request.samples]
        fresh["temperature"] = sampling.temperature
        fresh["top_p"] = sampling.top_p
        fresh["top_k"] = sampling.top_k
        width = len(request.stop_token_ids)
        if width > self._stops.shape[1]:
            self._stops = _padded(self._stops, (len(self._stops), width), NO_TOKEN)
        self._stops[rows] = NO_TOKEN
        self._stops[rows, :width] = request.stop_token_ids

    def _completion(self, row: int, version: WeightVersion, *, stopped: bool) -> tuple[Running, Completion]:
        running = self.running[row]
        made = slice(int(self._rows["start"][row]), int(self._rows["position"][row]) + 1)
        running.close_segment(version, made.stop - made.start)
        completion = Completion(
            request_id=running.sample.request_id,
            token_ids=tuple(self._tokens[row, made].tolist()),
            logprobs=tuple(self._logprobs[row, made].tolist()),
            segments=tuple(running.segments),
            finish="stop" if stopped else "length",
        )
        return running, completion

    def _leave(self, gone: NDArray[np.int64]) -> None:
        count = self.count
        kept = count - len(gone)
        holes = gone[gone < kept]
        movers = np.setdiff1d(np.arange(kept, count), gone, assume_unique=True)
        if holes.size:
            self._cache.move(movers, holes)
            for array in (self._rows, self._tokens, self._logprobs, self._mask, self._stops):
                array[holes] = array[movers]
            for hole, mover in zip(holes.tolist(), movers.tolist(), strict=True):
                self.running[hole] = self.running[mover]
        del self.running[kept:]
        self._rows["position"][kept:count] = 0  # a free row sees its first slot alone
        self._mask[kept:count, 1:] = HIDDEN
        self._laws = None

    def _make_room(self, rows: int, slots: int) -> None:
        old_rows, old_slots = self._tokens.shape
        if rows <= old_rows and slots <= old_slots:
            return
        # doubling copies each row a few times in all, however long it becomes
        rows = old_rows if rows <= old_rows else round_up(max(rows, 2 * old_rows))
        slots = old_slots if slots <= old_slots else min(max(slots, 2 * old_slots), self._model.context)
        shape = (rows, round_up(slots))
        self._cache.grow(*shape)
        self._tokens = _padded(self._tokens, shape, 0)
        self._logprobs = _padded(self._logprobs, shape, 0)
        self._mask = _padded(self._mask, shape, HIDDEN)
        self._mask[old_rows:, 0] = 0  # a row that sees nothing would come out as not a number
        self._stops = _padded(self._stops, (rows, self._stops.shape[1]), NO_TOKEN)
        self._rows = np.concatenate([self._rows, np.zeros(rows - old_rows, ROW)])


def _padded(array: NDArray[Any], shape: tuple[int, int], fill: float) -> NDArray[Any]:
    padded = np.full(shape, fill, dtype=array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded
