"""What a launcher lets its workers reach of the controller."""

from anyio.lowlevel import checkpoint

from protocols.inference import InferenceControllerPort
from protocols.roles import RolesPort


class Reachable:
    """Keeps what was served, for those that are launched from then on."""

    def __init__(self) -> None:
        self.inference: InferenceControllerPort | None = None
        self.roles: RolesPort | None = None

    async def serve(self, endpoint: str, port: InferenceControllerPort) -> None:
        """Let workers launched from now on call ``port``, whatever the name of ``endpoint``."""
        del endpoint
        await checkpoint()
        self.inference = port

    async def serve_roles(self, port: RolesPort) -> None:
        """Let workers launched from now on reach one another."""
        await checkpoint()
        self.roles = port
