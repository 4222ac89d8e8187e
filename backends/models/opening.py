"""The adapter of the job's model, and its tokenizer. Without torch: who plays episodes needs no more of a model."""

from typing import Any

import msgspec

from backends.models.tokenizers import Tokenizer
from protocols.adapters import UnknownAdapter, resolve
from protocols.errors import ConfigError, Problem, UserError
from protocols.sections import Site


def load_tokenizer(site: Site) -> Tokenizer:
    """Load the tokenizer of the job's model. Blocks for long; any thread.

    Raises:
        UserError: The job names no model, or its tokenizer cannot be loaded.
    """
    adapter, cfg = adapter_of(site)
    return adapter.load_tokenizer(cfg, site)


def check_model(site: Site) -> None:
    """Look whether the model of a job can be had, without loading it: a name that nobody knows, say, in seconds.

    Raises:
        ConfigError: It cannot; all of its problems at once.
    """
    adapter, cfg = adapter_of(site)
    if problems := adapter.check(cfg, site):
        raise ConfigError(problems)


def adapter_of(site: Site) -> tuple[Any, Any]:
    """Return the adapter of the job's model, and its configuration.

    Raises:
        UserError: The job names no model, or one that no adapter is for.
    """
    if site.model is None:
        why, mend = "this part of the job needs a model", "add a section [model]"
        raise ConfigError([Problem(field="model", value=None, why=why, mend=mend)])
    try:
        adapter = resolve("model", site.model.kind, site.job_dir)
        return adapter, msgspec.convert(site.model.options, adapter.Config)
    except UnknownAdapter as exc:
        raise ConfigError([exc.problem]) from exc
    except msgspec.ValidationError as exc:
        raise UserError(f"model: {exc}") from exc
