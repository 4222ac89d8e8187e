"""A small decoder described in the job, with random weights that follow from the run's seed."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from backends.models.lora import LoraConfig, add_adapters, find_missing, find_unmatched
from backends.models.tokenizers import CharacterTokenizer, Tokenizer
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    """Which decoder.

    Attributes:
        architecture: A model type of transformers that has a causal language model: ``gpt2``, ``llama``.
        config: Values of that type's configuration: ``n_layer``, ``hidden_size``. Dropout is 0 unless given.
        vocabulary: Its tokens: different characters, ids in order.
        end: The character that ends a completion; None where only the length does.
        lora: Train adapters beside its linear layers, and nothing else.
    """

    architecture: str
    config: dict[str, Any] = {}
    vocabulary: Annotated[str, msgspec.Meta(min_length=2)]
    end: str | None = None
    lora: LoraConfig | None = None


def check(cfg: Config, site: Site) -> Sequence[Problem]:  # noqa: ARG001 - the signature of every adapter
    """Return what is wrong with the vocabulary, and whether transformers and peft can build the decoder."""
    return [*_vocabulary_problems(cfg), *_architecture_problems(cfg), *find_missing(cfg.lora)]


def load_module(cfg: Config, site: Site) -> Any:
    """Build the decoder, weights drawn from ``site.seed``; the global random state stays as it was.

    Not to be run in two threads at once: initializers draw from the one global generator.

    Raises:
        UserError: It cannot have the adapters that ``lora`` asks for.
    """
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(site.seed)
        module = AutoModelForCausalLM.from_config(_transformers_config(cfg), dtype=torch.float32)
    if cfg.lora is not None:
        add_adapters(module, cfg.lora, site.seed)
    return module


def load_tokenizer(cfg: Config, site: Site) -> Tokenizer:  # noqa: ARG001 - the signature of every model
    """Return the tokenizer of the vocabulary."""
    return CharacterTokenizer(cfg.vocabulary, cfg.end)


def _transformers_config(cfg: Config) -> Any:
    from transformers import AutoConfig  # noqa: PLC0415 - heavy

    # a padding id would freeze and zero a character's embedding; the defaults lie outside a small vocabulary
    special: dict[str, int | None] = {"bos_token_id": None, "pad_token_id": None, "eos_token_id": None}
    if cfg.end is not None:
        special["eos_token_id"] = cfg.vocabulary.index(cfg.end)
    values = {"vocab_size": len(cfg.vocabulary), **special, **cfg.config}
    config = AutoConfig.for_model(cfg.architecture, **values)
    for name in config.to_dict():
        if (name.endswith(("dropout", "pdrop"))) and name not in cfg.config:
            setattr(config, name, 0.0)
    return config


def _vocabulary_problems(cfg: Config) -> list[Problem]:
    problems: list[Problem] = []
    repeated = sorted({character for character in cfg.vocabulary if cfg.vocabulary.count(character) > 1})
    if repeated:
        why, mend = f"{repeated[0]!r} is in it more than once", "name each character once"
        problems.append(Problem(field="model.vocabulary", value=repr(cfg.vocabulary), why=why, mend=mend))
    if cfg.end is not None and (len(cfg.end) != 1 or cfg.end not in cfg.vocabulary):
        why, mend = "it is not a character of the vocabulary", "add it to model.vocabulary, or leave it out"
        problems.append(Problem(field="model.end", value=repr(cfg.end), why=why, mend=mend))
    return problems


def _architecture_problems(cfg: Config) -> list[Problem]:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: PLC0415 - heavy
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: PLC0415 - heavy

    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if cfg.architecture not in known or CONFIG_MAPPING[cfg.architecture] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        near = difflib.get_close_matches(cfg.architecture, known, n=1)
        why = "transformers has no causal language model of this type"
        mend = f"did you mean '{near[0]}'?" if near else "gpt2, llama and qwen3 are often used"
        return [Problem(field="model.architecture", value=repr(cfg.architecture), why=why, mend=mend)]
    return _unknown_values(cfg, CONFIG_MAPPING[cfg.architecture]) or _build_problems(cfg)


def _unknown_values(cfg: Config, configuration: Any) -> list[Problem]:
    """Configurations of transformers swallow any name, so a misspelt one would silently do nothing."""
    known = {*configuration().to_dict(), *configuration.attribute_map}
    problems: list[Problem] = []
    for name in sorted(cfg.config.keys() - known):
        near = difflib.get_close_matches(name, known, n=1)
        mend = f"did you mean '{near[0]}'?" if near else f"see the configuration of '{cfg.architecture}'"
        why = f"'{cfg.architecture}' has no such value"
        problems.append(Problem(field=f"model.config.{name}", value=repr(cfg.config[name]), why=why, mend=mend))
    return problems


def _build_problems(cfg: Config) -> list[Problem]:
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy

    if _vocabulary_problems(cfg):
        return []
    try:
        with torch.device("meta"):  # shapes without memory
            module = AutoModelForCausalLM.from_config(_transformers_config(cfg), dtype=torch.float32)
    except Exception as exc:  # noqa: BLE001 - transformers checks values wherever it first stumbles over them
        why = f"transformers cannot build it: {' '.join(str(exc).split())}"
        mend = "make the sizes fit each other"
        return [Problem(field="model.config", value=repr(cfg.config), why=why, mend=mend)]
    return find_unmatched(cfg.lora, module)
