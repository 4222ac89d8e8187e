"""What adapters are told about the job they are part of."""

from typing import Any

from protocols.messages import Message


class Section(Message, frozen=True, kw_only=True):
    """One section of the job: an adapter's name, and the options that adapter defines.

    In a job file the options stand beside ``kind``.
    """

    kind: str
    options: dict[str, Any] = {}


class Site(Message, frozen=True, kw_only=True):
    """Facts about the run that adapters need wherever they are.

    Attributes:
        job_dir: Absolute folder that relative paths in the job start from.
        run_dir: Absolute folder of this run; None when nothing is written.
        resume: Whether the run goes on from what its folder holds; else the folder must hold no run.
        seed: Seed of the run.
        model: The job's model, for engines, trainers and tokenizers; None where none is named.
    """

    job_dir: str
    run_dir: str | None = None
    resume: bool = False
    seed: int = 0
    model: Section | None = None
