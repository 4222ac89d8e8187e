"""Which labels stand for which weights, and of which it was seen that the server holds them."""

import secrets

from anyio.lowlevel import checkpoint

from backends.engines._http.dialect import LabelledSpan
from protocols.aio import Doorbell
from protocols.inference import Segment
from protocols.messages import WeightVersion


class Unvouched(Exception):
    """Tokens were made by weights that nobody vouches for."""


class Trust:
    """Makes a label for each attempt to load weights, and remembers its verdict.

    A label holds what no other run, process or attempt has: a server outlives those who use it, and one that serves
    version 7 of another run says so under another name.
    """

    def __init__(self) -> None:
        self._mark = secrets.token_hex(4)
        self._attempts = 0
        self._versions: dict[str, WeightVersion] = {}
        self._open: dict[str, WeightVersion] = {}
        self._decided = Doorbell()

    @property
    def loading(self) -> str:
        """The label of weights that are being exchanged."""
        return f"{self._mark}-loading"

    def attempt(self, version: WeightVersion) -> str:
        """Return a label for weights that are about to be loaded; the verdict is open."""
        self._attempts += 1
        label = f"{self._mark}-v{version}-{self._attempts}"
        self._open[label] = version
        return label

    def accept(self, label: str) -> None:
        """Vouch for a label."""
        self._versions[label] = self._open.pop(label)
        self._decided.ring()

    def refuse(self, label: str) -> None:
        """Never vouch for a label."""
        self._open.pop(label, None)
        self._decided.ring()

    def version(self, label: str) -> WeightVersion | None:
        """Return the version that a label stands for; None: nobody vouches for it, or not yet."""
        return self._versions.get(label)

    async def segments(self, spans: tuple[LabelledSpan, ...]) -> tuple[Segment, ...]:
        """Return the versions of spans, once each has its verdict.

        Raises:
            Unvouched: One of them is not trusted.
        """
        await checkpoint()
        while any(span.label in self._open for span in spans):
            await self._decided.wait()
        found: list[Segment] = []
        for span in spans:
            version = self._versions.get(span.label)
            if version is None:
                raise Unvouched(f"{span.tokens} tokens were made by weights called {span.label!r}")
            if span.tokens:
                found.append(Segment(version=version, count=span.tokens))
        return tuple(found)
