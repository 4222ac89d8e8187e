"""What goes between the controller and the actor of a worker, beside the bytes of a port's codec."""

from typing import Literal

import msgspec

from protocols.backend import WorkloadSpec
from protocols.inference import InferenceControllerPort
from protocols.messages import Message
from protocols.roles import RolesPort

Asked = Literal["inference", "roles"]
"""Of whom a worker asks: the engines, or the other workers."""

ASKED: dict[Asked, type] = {"inference": InferenceControllerPort, "roles": RolesPort}
"""Their ports, which the controller answers for."""


class LaunchOrder(Message, frozen=True, kw_only=True):
    """What a new worker is to be.

    Attributes:
        spec: What to open.
        threads: For ``OMP_NUM_THREADS``, where the job does not say.
        asked: Whom the controller answers for.
        mark: What all carry that the worker starts.
        beat_s: How long the worker may leave the controller's question unanswered.
    """

    spec: WorkloadSpec
    threads: int
    asked: tuple[Asked, ...]
    mark: str
    beat_s: float


class Facts(Message, frozen=True, kw_only=True):
    """Of a worker that is open: which process it is.

    Attributes:
        node: Ray's id of its node.
        pid: On that node.
        started: When, in the clock ticks of that node since it was booted: no other process with this number has it.
    """

    node: str
    pid: int
    started: int


Reply = tuple[bytes | None, bytes | None]
"""The answer to a call: bytes of the codec, or of a failure."""

TAKEN_BACK: Reply = (None, None)


Call = tuple[int, str, bytes]
"""The number of a call, its method, its encoded arguments."""

Question = tuple[int, Asked, str | None, bytes]
"""A call of a worker to the controller: its number, whom it is for, its method, its encoded arguments. Without a method
it takes back the call of that number."""

Mail = tuple[list[Question], list[tuple[int, Reply]]]
"""What a worker has for the controller: questions, and answers to calls that came together, by their numbers."""

as_bytes = msgspec.msgpack.encode
"""Any of them on its way: Ray carries bytes as they are, and pickles everything else."""

call_of = msgspec.msgpack.Decoder(Call).decode
calls_of = msgspec.msgpack.Decoder(list[Call]).decode
reply_of = msgspec.msgpack.Decoder(Reply).decode
replies_of = msgspec.msgpack.Decoder(list[tuple[int, Reply]]).decode
mail_of = msgspec.msgpack.Decoder(Mail).decode
