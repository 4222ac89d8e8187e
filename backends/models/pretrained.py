"""A pretrained model from a folder or by its Hugging Face name."""

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from pathlib import Path
from typing import Any

from backends.models.lora import LoraConfig, add_adapters, find_missing, find_unmatched
from backends.models.tokenizers import HuggingFaceTokenizer, Tokenizer
from protocols.errors import Problem, UserError
from protocols.messages import Message
from protocols.sections import Site

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
ANSWER_S = 10.0
"""How long Hugging Face may take to answer while a job is checked."""


class Config(Message, frozen=True, kw_only=True):
    """Which model.

    Attributes:
        path: A folder, absolute or from the job's folder, or a Hugging Face name (``org/model``).
        lora: Train adapters beside its linear layers, and nothing else.
    """

    path: str
    lora: LoraConfig | None = None


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what keeps the model from being loaded; a name is asked for only if it was never downloaded."""
    folder = _folder(cfg, site)
    trouble = _unreachable(cfg.path) if folder is None else _folder_trouble(folder)
    missing = find_missing(cfg.lora)
    if trouble is None:
        return [*missing, *_unmatched_targets(cfg, site)]
    why, mend = trouble
    return [Problem(field="model.path", value=repr(cfg.path), why=why, mend=mend), *missing]


def load_module(cfg: Config, site: Site) -> Any:
    """Load the model in float32.

    Raises:
        UserError: It cannot be read, or cannot have the adapters that ``lora`` asks for.
    """
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy
    from transformers.utils import logging  # noqa: PLC0415 - heavy

    logging.disable_progress_bar()
    try:
        module = AutoModelForCausalLM.from_pretrained(_where(cfg, site), dtype=torch.float32)
    except Exception as exc:  # each file format and each architecture has errors of its own
        raise UserError(f"model.path = {cfg.path!r}: the model cannot be loaded: {exc}") from exc
    if cfg.lora is not None:
        add_adapters(module, cfg.lora, site.seed)
    return module


def load_tokenizer(cfg: Config, site: Site) -> Tokenizer:
    """Load the tokenizer; what the model's generation settings call an end also stops a completion.

    Raises:
        UserError: It cannot be read.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - heavy

    where = _where(cfg, site)
    try:
        inner = AutoTokenizer.from_pretrained(where)
    except Exception as exc:  # as above
        raise UserError(f"model.path = {cfg.path!r}: the tokenizer cannot be loaded: {exc}") from exc
    return HuggingFaceTokenizer(inner, _stop_token_ids(where))


def _unmatched_targets(cfg: Config, site: Site) -> list[Problem]:
    """Find targets without a layer, where the description of the model is on this machine."""
    if cfg.lora is None or cfg.lora.targets is None:
        return []
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - heavy

    try:
        config = AutoConfig.from_pretrained(_where(cfg, site), local_files_only=True)
        with torch.device("meta"):  # shapes without memory
            module = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError):  # not downloaded yet, or none that transformers knows: loading it will tell
        return []
    return find_unmatched(cfg.lora, module)


def _stop_token_ids(where: str) -> tuple[int, ...]:
    from transformers import GenerationConfig  # noqa: PLC0415 - heavy

    try:
        ends = GenerationConfig.from_pretrained(where).eos_token_id
    except OSError:  # many models have no generation settings
        return ()
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends)


def _where(cfg: Config, site: Site) -> str:
    return str(_folder(cfg, site) or cfg.path)


def _folder(cfg: Config, site: Site) -> Path | None:
    """Return the folder meant, whether or not it exists; None where ``path`` is a Hugging Face name."""
    folder = Path(site.job_dir) / Path(cfg.path).expanduser()
    marked = cfg.path.startswith(("/", ".", "~")) or cfg.path.count("/") > 1
    return folder if marked or folder.exists() else None


def _folder_trouble(folder: Path) -> tuple[str, str] | None:
    if not folder.is_dir():
        return f"there is no folder {folder}", "name a folder with config.json, weights and tokenizer"
    try:
        names = {entry.name for entry in folder.iterdir()}
        if "adapter_config.json" in names and "config.json" not in names:
            return "it holds adapters alone", "name their model, or merge them into it: docs/models.md says how"
        described = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as exc:
        return f"its config.json cannot be read: {exc}", "name a folder that save_pretrained wrote"
    if not isinstance(described, dict) or "model_type" not in described:
        return "its config.json names no model_type", "name a folder that save_pretrained wrote"
    return _lacking(folder, names)


def _lacking(folder: Path, names: AbstractSet[str]) -> tuple[str, str] | None:
    if names.isdisjoint(TOKENIZER_FILES):
        return f"it holds no tokenizer ({', '.join(TOKENIZER_FILES)})", "save the tokenizer into the same folder"
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES):
        return f"it holds no weights ({', '.join(WEIGHT_FILES)})", "save the model into the same folder"
    return None


def _unreachable(name: str) -> tuple[str, str] | None:
    from huggingface_hub import get_session, hf_hub_url, try_to_load_from_cache  # noqa: PLC0415 - heavy
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415 - heavy
    from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415 - heavy

    mend = "name a folder, or download the model first"
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
        # not the hub's own download: without a network it tries for half a minute, loudly
        session, url = get_session(), hf_hub_url(name, "config.json")
        answer = session.head(url, headers=build_hf_headers(), follow_redirects=True, timeout=ANSWER_S)
        status = answer.status_code
    except HFValidationError:
        return "it is neither a folder nor a Hugging Face name", mend
    except Exception as exc:  # noqa: BLE001 - each version of the hub has its own idea of an error
        return f"it is no folder, and Hugging Face cannot be asked: {exc}", mend
    return None if status == HTTPStatus.OK else (f"it is no folder, and Hugging Face answers {status}", mend)
