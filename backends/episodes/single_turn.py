"""Episodes of one turn: the prompt goes in, one completion a sample comes out."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from backends.episodes._attempts import Attempts
from backends.models.opening import load_tokenizer
from backends.models.tokenizers import Tokenizer
from protocols.adapters import Host
from protocols.backend import PayloadPort
from protocols.errors import InvariantError, Problem, UserError
from protocols.inference import (
    AbortReport,
    Completion,
    GenerateRequest,
    Generation,
    InferenceControllerPort,
    SampleRequest,
)
from protocols.messages import Message, PayloadRef, request_id, stream_name
from protocols.prompts import TextPrompt, preview
from protocols.rollouts import (
    GroupPayload,
    GroupReceipt,
    RolloutExecutorPort,
    RolloutLease,
    SamplePayload,
    SampleReceipt,
)
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    """``[episode] kind = "single_turn"`` has no options."""


class SingleTurn:
    """Sends a group as one request, and keeps its tokens in the payload store.

    Args:
        tokenizer: Of the model that the engines serve. It works in a thread, one call at a time.
        inference: Where tokens come from.
        payloads: Where they go.
    """

    def __init__(self, tokenizer: Tokenizer, inference: InferenceControllerPort, payloads: PayloadPort) -> None:
        self._tokenizer = tokenizer
        self._inference = inference
        self._payloads = payloads
        self._attempts = Attempts()
        self._one_thread = anyio.CapacityLimiter(1)
        self._stop_ids: dict[str, int] = {}

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        """Play the group of a lease; see ``RolloutExecutorPort.generate``.

        Raises:
            UserError: A stop text of the job is no single token of the model.
        """
        await checkpoint()
        return await self._attempts.run(lease.prefix, lambda: self._play(lease))

    async def _play(self, lease: RolloutLease) -> GroupReceipt:
        request = await anyio.to_thread.run_sync(self._request, lease, limiter=self._one_thread)
        generation = await self._inference.generate(request)
        if [one.request_id for one in generation.completions] != [one.request_id for one in request.samples]:
            raise InvariantError(f"the answer to {lease.prefix} holds other samples than were asked for")
        payload = await anyio.to_thread.run_sync(
            self._payload, lease, request, generation.completions, limiter=self._one_thread
        )
        ref = PayloadRef(owner=lease.prefix, key="group")
        await self._payloads.put(ref, payload)
        return _receipt(lease, ref, payload, generation)

    def _request(self, lease: RolloutLease) -> GenerateRequest:
        stop_texts = tuple(self._stop_id(text) for text in lease.sampling.stop)
        return GenerateRequest(
            prompt_ids=self._tokenizer.encode(lease.prompt.content),
            samples=tuple(
                SampleRequest(
                    request_id=request_id(lease.prefix, sample),
                    stream=stream_name(lease.seed, lease.prompt.position, sample),
                )
                for sample in range(lease.group_size)
            ),
            sampling=lease.sampling,
            stop_token_ids=tuple(dict.fromkeys((*self._tokenizer.stop_token_ids, *stop_texts))),
        )

    def _stop_id(self, text: str) -> int:
        if text not in self._stop_ids:
            token_id = self._tokenizer.token_id(text)
            if token_id is None:
                mend = "name one of its tokens, or leave it out"
                raise UserError(f"sampling.stop: {text!r} is no single token of the model; {mend}")
            self._stop_ids[text] = token_id
        return self._stop_ids[text]

    def _payload(
        self, lease: RolloutLease, request: GenerateRequest, completions: tuple[Completion, ...]
    ) -> GroupPayload:
        content = lease.prompt.content
        text = content.text if isinstance(content, TextPrompt) else self._tokenizer.decode(request.prompt_ids)
        return GroupPayload(
            prompt_ids=request.prompt_ids,
            prompt_text=text,
            temperature=lease.sampling.temperature or 1.0,  # greedy: log-probabilities are taken at 1
            samples=tuple(self._sample(one, request.stop_token_ids) for one in completions),
        )

    def _sample(self, completion: Completion, stop_token_ids: tuple[int, ...]) -> SamplePayload:
        token_ids = completion.token_ids
        stopped = bool(token_ids) and token_ids[-1] in stop_token_ids
        text = self._tokenizer.decode(token_ids[:-1] if stopped else token_ids)
        return SamplePayload(token_ids=token_ids, logprobs=completion.logprobs, text=text)

    async def abort(self, prefix: str) -> AbortReport:
        """End attempts; see ``RolloutExecutorPort.abort``.

        The engines are asked first, so that the report names what ran there; what still runs here is cut
        after that, and whatever the engines say. Payloads go when nothing can put one any more.
        """
        self._attempts.remember(prefix)
        try:
            report = await self._inference.abort(prefix)
        finally:
            self._attempts.cancel(prefix)
        await self._attempts.ended(prefix)
        await self._payloads.release(prefix)
        return report


def _receipt(lease: RolloutLease, ref: PayloadRef, payload: GroupPayload, generation: Generation) -> GroupReceipt:
    return GroupReceipt(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        prompt_tokens=len(payload.prompt_ids),
        payload=ref,
        samples=tuple(
            SampleReceipt(
                tokens=len(one.token_ids),
                segments=one.segments,
                finish=one.finish,
                preview=preview(sample.text),
                engine=generation.engine,
            )
            for one, sample in zip(generation.completions, payload.samples, strict=True)
        ),
    )


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return nothing: the tokenizer is the model's business."""
    del cfg, site
    return ()


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[SingleTurn]:  # noqa: A001 - the adapters' common name
    """Load the model's tokenizer, off the loop.

    Raises:
        UserError: The job names no model, or its tokenizer cannot be loaded.
    """
    del cfg
    if host.inference is None:
        raise InvariantError("an executor was launched before the engines that it plays on")
    tokenizer = await anyio.to_thread.run_sync(load_tokenizer, host.site)
    yield SingleTurn(tokenizer, host.inference, host.payloads)


_: type[RolloutExecutorPort] = SingleTurn
