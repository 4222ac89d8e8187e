"""What an engine does between two tokens, and the token itself. Synchronous; one thread uses it."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backends.engines._prefixes import AbortedPrefixes
from backends.engines.torch.batch import Batch, Call
from backends.engines.torch.model import CausalModel
from protocols.errors import Aborted
from protocols.inference import Completion
from protocols.messages import WeightVersion

PREFILL_TOKENS = 16_384
"""Most prompt tokens computed at once, padding included: bounds the memory of a step."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One sample of a call ended by itself."""

    call: Call
    completion: Completion


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Nothing of a call runs any more, though not all of its samples finished."""

    call: Call
    error: Aborted | None


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A watched call has one more token."""

    call: Call
    request_id: str
    token_id: int
    logprob: float


Event = Finished | Ended | Drawn


class Decoder:
    """The running and waiting calls of one model.

    Attributes:
        version: The weights that make the next token; None before the first swap. Any thread may read it.
        paused: Whether no token is made. Any thread may read it.

    Args:
        model: Computes.
        slots: Rows at once; a call with more samples runs alone.
        deterministic: As the model was built.
    """

    def __init__(self, model: CausalModel, *, slots: int, deterministic: bool = False) -> None:
        self.version: WeightVersion | None = None
        self.paused = False
        self._model = model
        self._slots = slots
        self._batch = Batch(model, padded=deterministic)
        self._waiting: deque[Call] = deque()
        self._aborted = AbortedPrefixes()
        self._events: list[Event] = []

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return not self.paused and bool(self._waiting or self._batch.count)

    def take_events(self) -> list[Event]:
        """Return what happened since the last time, in order."""
        events, self._events = self._events, []
        return events

    def join(self, call: Call) -> None:
        """Queue a call, unless one of its samples was aborted before it came."""
        for sample in call.request.samples:
            prefix = self._aborted.match(sample.request_id)
            if prefix is not None:
                self._events.append(Ended(call=call, error=Aborted(prefix=prefix)))
                return
        self._waiting.append(call)

    def abort(self, prefix: str) -> frozenset[str]:
        """End every call that has a sample under ``prefix`` and remember it; returns the ids that were live."""
        self._aborted.add(prefix)
        live = self._live()
        hit = [call for call, ids in live.items() if any(name.startswith(prefix) for name in ids)]
        self._end(hit, Aborted(prefix=prefix))
        return frozenset(name for call in hit for name in live[call])

    def drop(self, call: Call) -> None:
        """End a call that nobody waits for; one that ended already is no error."""
        if call in self._live():
            self._end([call], None)

    def swap(self, version: WeightVersion, weights: Mapping[str, Any]) -> WeightVersion:
        """Let ``weights`` make the tokens from the next one on.

        Raises:
            InvariantError: They do not fit the model; the old ones stay.
        """
        self._model.rebind(weights)
        if self.version is not None:
            self._batch.close_segments(self.version)
        self.version = version
        return version

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return log-probabilities as ``CausalModel.score`` does."""
        return self._model.score(token_ids)

    def pause(self) -> None:
        """Make no tokens until ``resume``."""
        self.paused = True

    def resume(self) -> None:
        """Make tokens again."""
        self.paused = False

    @torch.inference_mode()
    def step(self) -> None:
        """Make one token for every running sample, and the first one for those that can join.

        Only while ``busy``, and after the first ``swap``.
        """
        joining = self._admit()
        logits = [self._batch.forward()] if self._batch.count else []
        if joining:
            prompt_logits, prompts = self._model.prefill([call.request.prompt_ids for call in joining])
            logits.append(prompt_logits[self._batch.join(joining, prompts)])
        tokens, logprobs = self._batch.draw(logits[0] if len(logits) == 1 else torch.cat(logits))
        assert self.version is not None
        rows = zip(self._batch.running, tokens.tolist(), logprobs.tolist(), strict=True)
        self._events.extend(
            Drawn(call=running.call, request_id=running.sample.request_id, token_id=token, logprob=logprob)
            for running, token, logprob in rows
            if running.call.watched
        )
        for running, completion in self._batch.advance(tokens, logprobs, self.version):
            self._events.append(Finished(call=running.call, completion=completion))

    def _admit(self) -> list[Call]:
        """Take the calls that fit off the queue, in order: nobody overtakes one that needs many slots."""
        joining: list[Call] = []
        taken, widest = self._batch.count, 0
        while self._waiting:
            samples = len(self._waiting[0].request.samples)
            widest = max(widest, len(self._waiting[0].request.prompt_ids))
            if taken and (taken + samples > self._slots or (len(joining) + 1) * widest > PREFILL_TOKENS):
                break
            joining.append(self._waiting.popleft())
            taken += samples
        return joining

    def _live(self) -> dict[Call, list[str]]:
        live: dict[Call, list[str]] = {}
        for running in self._batch.running:
            live.setdefault(running.call, []).append(running.sample.request_id)
        for call in self._waiting:
            live[call] = [sample.request_id for sample in call.request.samples]
        return live

    def _end(self, calls: Sequence[Call], error: Aborted | None) -> None:
        gone = frozenset(calls)
        self._batch.remove(gone)
        self._waiting = deque(call for call in self._waiting if call not in gone)
        self._events.extend(Ended(call=call, error=error) for call in calls)
