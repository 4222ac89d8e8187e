"""Adapters that a job names as ``tests.unit.config.stub_adapters:good``; they need nothing and open nothing."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    rate: Annotated[float, Meta(gt=0)] = 1.0
    path: str = ""


class Check:
    """Notes every site that it is asked about."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        self.sites: list[Site] = []

    def __call__(self, _cfg: Config, site: Site) -> Sequence[Problem]:
        self.sites.append(site)
        return self.problems


@asynccontextmanager
async def _nothing(_cfg: Config, _host: object) -> AsyncGenerator[None]:
    yield


@dataclass(frozen=True)
class Stub:
    check: Callable[[Config, Site], Sequence[Problem]]
    Config: type[Config] = Config
    open: Callable[..., object] = _nothing
    load_module: object = None
    load_tokenizer: object = None


@dataclass(frozen=True)
class Hollow:
    Config: type[Config] = Config


def problem(field: str, why: str = "is no good") -> Problem:
    return Problem(field=field, value="'x'", why=why, mend="find another")


good = Stub(Check())
bad = Stub(Check(problem("train.path")))
bad_model = Stub(Check(problem("model.path")))
blames_the_model = Stub(Check(problem("model", "cannot be loaded"), problem("engine.path")))
repeats_itself = Stub(Check(problem("train.path"), problem("train.path")))
hollow = Hollow()
