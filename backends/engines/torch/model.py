"""The two forward passes of decoding, over any causal language model of transformers."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from backends.engines.torch.cache import Prompts, RowCache
from backends.models.loading import changing_tensors
from protocols.errors import InvariantError, Problem, UserError

BLOCK = 16
"""Rows and slots come in multiples of this where results must not depend on how many there are."""


class CausalModel:
    """A module, the lengths it can take, and how its forward pass is called.

    Args:
        module: In eval mode; its parameters are rebound by ``rebind``.
        context: Most tokens asked for; None takes what the model was made for.
        deterministic: Pad rows and prompts so that a row's numbers do not depend on the other rows.

    Raises:
        UserError: The model was made for fewer tokens, or is of a kind that cannot be decoded here.
    """

    def __init__(self, module: PreTrainedModel, *, context: int | None, deterministic: bool) -> None:
        self.module = module
        self.context = _context(module.config, context)
        self.vocabulary: int = module.get_input_embeddings().num_embeddings  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        self._deterministic = deterministic
        parameters = inspect.signature(module.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.2x
        self._keeps = "logits_to_keep" in parameters

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Prompts]:
        """Compute several prompts at once.

        Args:
            prompts: Token ids, at least one each.

        Returns:
            The logits behind each prompt, shape ``[prompts, V]``, and the keys and values of all of them.
        """
        lengths = np.array([len(prompt) for prompt in prompts])
        rows, width = len(prompts), int(lengths.max())
        if self._deterministic:
            rows, width = round_up(rows), round_up(width)
        ids = np.zeros((rows, width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        wanted, place = np.unique(lengths - 1, return_inverse=True)
        cache = DynamicCache()
        positions = torch.arange(width).clamp_(max=self.context - 1)[None]
        logits = self._forward(torch.from_numpy(ids), positions, cache, keep=torch.from_numpy(wanted))
        computed: Any = cache.layers
        last = logits[np.arange(len(prompts)), place if self._keeps else lengths - 1]
        return last, [(layer.keys, layer.values) for layer in computed]

    def decode(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: RowCache) -> Tensor:
        """Compute one more token a row.

        Args:
            tokens: Ids, shape ``[R, 1]``.
            positions: Of the tokens, shape ``[R, 1]``.
            mask: Added to the attention scores, shape ``[R, 1, 1, slots]``.
            cache: Aimed at these rows and positions.

        Returns:
            Logits, shape ``[R, V]``.
        """
        return self._forward(tokens, positions, cache, attention_mask=mask)[:, -1]

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, given those before it, at temperature 1."""
        ids = torch.tensor([token_ids])
        logits = self._forward(ids, torch.arange(len(token_ids))[None], DynamicCache())[0, :-1]
        return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()

    def _forward(
        self, ids: Tensor, positions: Tensor, cache: Any, keep: Tensor | None = None, **options: Any
    ) -> Tensor:
        if keep is not None and self._keeps:
            options["logits_to_keep"] = keep
        options[self._cache_name] = cache
        return self.module(input_ids=ids, position_ids=positions, use_cache=True, **options).logits.float()

    def rebind(self, weights: Mapping[str, Any]) -> None:
        """Make the module compute with ``weights``, without copying them.

        Whoever lent them must not change them while tokens are made from them: they are a copy of the
        trainer's own making, or ``StageRequest.exclusive`` was promised.

        Args:
            weights: Named as in ``backends.models.loading.named_weights``.

        Raises:
            InvariantError: A name, a shape or a type does not fit; then nothing was changed.
        """
        targets = changing_tensors(self.module)
        if weights.keys() != targets.keys():
            strange = sorted(weights.keys() ^ targets.keys())
            raise InvariantError(f"the weights do not fit the model: {strange[0]} and {len(strange) - 1} other names")
        for name, target in targets.items():
            given = weights[name]
            if not isinstance(given, Tensor) or (given.shape, given.dtype) != (target.shape, target.dtype):
                found = f"{tuple(given.shape)} {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
                raise InvariantError(f"weight {name} is {found}, not {tuple(target.shape)} {target.dtype}")
        for name, target in targets.items():
            target.data = weights[name].detach()


def round_up(count: int) -> int:
    """Return the next multiple of ``BLOCK``."""
    return -(-count // BLOCK) * BLOCK


def _context(config: Any, asked: int | None) -> int:
    text = config.get_text_config()
    made_for = getattr(text, "max_position_embeddings", None)
    if asked is None and made_for is None:
        raise _refused(None, "the model does not say how many tokens it was made for", "say how many it may take")
    if asked is not None and made_for is not None and asked > made_for:
        raise _refused(asked, f"the model was made for {made_for} tokens", "ask for no more than that")
    context = int(asked or made_for or 0)
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None)
    if kinds - {"full_attention", "sliding_attention"}:
        what = ", ".join(sorted(kinds - {"full_attention", "sliding_attention"}))
        raise UserError(f"the torch engine decodes layers of full attention; the model has {what}")
    if ("sliding_attention" in kinds or (not kinds and window)) and window is not None and context > window:
        why = f"the model attends to the last {window} tokens only, and the torch engine to all"
        raise _refused(asked, why, f"set it to {window} or less")
    return context


def _refused(value: int | None, why: str, mend: str) -> UserError:
    shown = None if value is None else str(value)
    return UserError(str(Problem(field="engine.context", value=shown, why=why, mend=mend)))
