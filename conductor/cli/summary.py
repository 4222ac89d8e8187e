"""A job in a few lines."""

from conductor.config import RunConfig
from conductor.validation import SECTIONS


def summary(cfg: RunConfig) -> str:
    """Say what a job would do."""
    sections = ((name, getattr(cfg, name)) for name in SECTIONS)
    kinds = ", ".join(f"{name} {section.kind}" for name, section in sections if section is not None)
    samples = cfg.batch_groups * cfg.group_size
    size = f"{cfg.steps} steps of {samples} samples ({cfg.batch_groups} prompts x {cfg.group_size})"
    lines = [
        f"{cfg.name}: {size}, at most {cfg.sampling.max_tokens} tokens each",
        f"{cfg.algorithm}, weights at most {cfg.max_age:g} versions old, {cfg.slots_in_flight} groups in flight",
        kinds,
    ]
    if (evaluation := cfg.evaluation) is not None:
        when = f"every {evaluation.every} steps and at the end" if evaluation.every else "at the end"
        prompts = "one epoch" if evaluation.size is None else f"{evaluation.size} prompts"
        lines.append(f"evaluated {when}, on {prompts} x {evaluation.samples}")
    return "\n".join(f"  {line}" for line in lines)
