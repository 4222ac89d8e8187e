"""Conductor: an asyncio-native controller for reinforcement-learning post-training of language models.

``await Conductor.run(load_config("job.toml"))`` is the one entry point. This package holds the verbs and
imports protocols only; everything physical is behind a port.
"""

from conductor.conductor import Conductor
from conductor.config import RunConfig
from conductor.loading import load_config
from conductor.ports import Workloads
from conductor.result import Accounts, RunResult

__all__ = ["Accounts", "Conductor", "RunConfig", "RunResult", "Workloads", "load_config"]
