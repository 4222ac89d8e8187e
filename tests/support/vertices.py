"""Workers of one role, as a plan has them."""

from protocols.backend import Ranks
from protocols.fleet import Vertex
from protocols.messages import WorkerId
from protocols.sections import Section


def vertices(role: str, section: str, adapters: list[Section]) -> tuple[Vertex, ...]:
    """Return a worker for each adapter, on one node, bound to nothing."""
    return tuple(
        Vertex(
            name=WorkerId(f"{role}/{number}"),
            role=role,
            section=section,
            adapter=adapter,
            environment={},
            ranks=Ranks(world=number, role=number, node=0, local=number),
            node="local",
            domain="local",
            device="cpu",
            devices=(),
            cpus=(),
            bundle=f"{role}/{number}",
        )
        for number, adapter in enumerate(adapters)
    )
