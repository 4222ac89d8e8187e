"""What every interface is made of: which path does what, and what counts as which call of an engine."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from backends.engines._serve.served import ServedEngine
from backends.engines._serve.web import Answer, Refused, Request, as_json
from protocols.errors import (
    BadPrompt,
    ConductorError,
    EngineBusy,
    InvariantError,
    PromptTooLong,
    UserError,
)
from protocols.inference import Sampling

Tokens = list[Annotated[int, Meta(ge=0)]]


class Route(NamedTuple):
    """One path.

    Attributes:
        answer: Answers a request to it.
        method: The method of ``EnginePort`` that a client calls this way; empty: none.
    """

    answer: Callable[[Request], Awaitable[Answer]]
    method: str = ""


Routes = Mapping[tuple[str, str], Route]
"""``(GET or POST, path)`` -> what answers."""

Interface = Callable[[ServedEngine], Routes]


def drawn_by(served: ServedEngine, prompt: Sequence[int], max_tokens: int, drawn: Any) -> Sampling:
    """Return how tokens are drawn, as long as the context has room.

    Args:
        served: Whose context it is.
        prompt: Token ids.
        max_tokens: As asked.
        drawn: Has ``temperature``, ``top_p`` and ``top_k``; one below 1 keeps all tokens.

    Raises:
        Refused: A number is out of its range.
    """
    if max_tokens < 1 or drawn.temperature < 0 or not 0 < drawn.top_p <= 1:
        raise Refused(HTTPStatus.BAD_REQUEST, "max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1 are needed")
    # a prompt without room is refused by the engine, which says so better
    room = max(1, min(max_tokens, served.context - len(prompt)))
    return Sampling(max_tokens=room, temperature=drawn.temperature, top_p=drawn.top_p, top_k=max(0, drawn.top_k))


def status_of(error: Exception) -> HTTPStatus:
    """Return the status that tells of an error."""
    match error:
        case Refused():
            return error.status
        case PromptTooLong() | BadPrompt() | UserError():
            return HTTPStatus.BAD_REQUEST
        case EngineBusy():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case InvariantError() | ConductorError() | _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


class _Error(Struct):
    message: str
    type: str
    code: int
    param: None = None


def error_body(error: Exception) -> dict[str, Any]:
    """Return the body that OpenAI and vLLM tell of an error with."""
    status = status_of(error)
    kind = "BadRequestError" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalServerError"
    return {"error": _Error(message=str(error), type=kind, code=int(status))}


def failed(error: Exception) -> Answer:
    """Return the answer that tells of an error."""
    return as_json(error_body(error), status_of(error))
