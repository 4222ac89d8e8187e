"""Which server an engine is, as a job says it."""

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from backends._extras import find_missing
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site


class ServerOptions(Message, frozen=True, kw_only=True):
    """Where the server is, or how it is started. Either ``urls`` or ``command``.

    Attributes:
        urls: Servers that run already, ``http://host:8000``, one for each engine of the job.
        router: A router before all of ``urls``, which are one engine then: requests go through it, and aborts, pauses
            and weights to each server itself.
        command: Starts a server for each engine; ``{port}`` stands for the port that it is to listen on.
        start_s: How long a server may take until it answers.
        weights_dir: Folder for published weights, which the servers see under the same path; else the run's own.
        weights: How published weights reach a server: ``file``, in a folder that both see; or by broadcast from this
            side, ``gloo`` through memory and ``nccl`` between GPUs.
        in_flight: The most samples that a server is given at once; fewer while it reports a queue or a full cache.
        probe_tolerance: By how much a server's log-probabilities of fixed tokens may differ from the trainer's after
            a publish, in nats. Servers that compute in half precision need 0.1 and more.
    """

    urls: tuple[str, ...] = ()
    router: str | None = None
    command: tuple[str, ...] = ()
    start_s: Annotated[float, Meta(gt=0)] = 300.0
    weights_dir: str | None = None
    weights: Literal["file", "gloo", "nccl"] = "file"
    in_flight: Annotated[int, Meta(ge=1)] = 1024
    probe_tolerance: Annotated[float, Meta(gt=0)] = 1e-3


def check_options(cfg: ServerOptions, site: Site, *, kind: str, takes_adapters: bool) -> Sequence[Problem]:
    """Return what is wrong with the options, without asking a server."""
    problems = find_missing("httpx2", field="engine.kind", kind=kind, extra="http")
    if bool(cfg.urls) == bool(cfg.command):
        why = "it is not said which server it is" if not cfg.urls else "it is both attached to and started"
        mend = "give either urls or a command"
        problems.append(Problem(field="engine.urls", value=None, why=why, mend=mend))
    if cfg.command and not any("{port}" in word for word in cfg.command):
        why, mend = "the server is not told its port", "write {port} where it goes"
        problems.append(Problem(field="engine.command", value=repr(cfg.command[0]), why=why, mend=mend))
    problems += [_no_address("urls", url) for url in cfg.urls if not _is_address(url)]
    if cfg.router is not None:
        if not _is_address(cfg.router):
            problems.append(_no_address("router", cfg.router))
        if not cfg.urls:
            why, mend = "nobody knows which servers are behind it", "name them all in urls"
            problems.append(Problem(field="engine.router", value=repr(cfg.router), why=why, mend=mend))
    if cfg.weights != "file":
        problems += _check_broadcast(cfg, site, takes_adapters=takes_adapters)
    if not takes_adapters and site.model is not None and site.model.options.get("lora") is not None:
        why, mend = (
            f"{kind} is given whole models, not adapters",
            "train without lora, or with engine.kind = 'vllm' or 'torch'",
        )
        problems.append(Problem(field="model.lora", value=None, why=why, mend=mend))
    return problems


def _check_broadcast(cfg: ServerOptions, site: Site, *, takes_adapters: bool) -> Sequence[Problem]:
    field, value = "engine.weights", repr(cfg.weights)
    if cfg.weights_dir is not None:
        why, mend = "weights that are sent lie in no folder", "leave engine.weights_dir out, or weights = 'file'"
        return [Problem(field=field, value=value, why=why, mend=mend)]
    if takes_adapters and site.model is not None and site.model.options.get("lora") is not None:
        why, mend = "servers read adapters from files", "weights = 'file'"
        return [Problem(field=field, value=value, why=why, mend=mend)]
    return []


def _is_address(url: str) -> bool:
    return urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).hostname)


def _no_address(option: str, url: str) -> Problem:
    why, mend = "it is no address of a server", "write it as http://host:8000"
    return Problem(field=f"engine.{option}", value=repr(url), why=why, mend=mend)
