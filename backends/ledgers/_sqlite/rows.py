"""Events in rows, and back. A row holds up to ``ROW_EVENTS`` events that were written at once.

``seq`` is the number of its last event, counted from 1 over the life of the record. ``crc`` is the CRC-32 of
its body *continued from the row before*: a chain, so that one sum over a thousand bodies checks them all,
and a row that is missing or moved breaks it as a flipped bit does.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protocols.errors import ConductorError, CorruptLedger, UserError
from protocols.ledger import LedgerEvent

ROW_EVENTS = 64
Row = tuple[int, int, bytes]
"""``seq``, ``crc`` and ``body``: the events in MessagePack, one after another."""

_decoder = msgspec.msgpack.Decoder(list[LedgerEvent])


@dataclass(frozen=True, kw_only=True)
class End:
    """Where a record ends and the next row goes on: the number of the last event, and the chain's sum."""

    seq: int
    crc: int


def pack(events: Sequence[bytes], after: End) -> tuple[list[Row], End]:
    """Put encoded events into rows that continue a record; returns its new end as well."""
    rows: list[Row] = []
    seq, crc = after.seq, after.crc
    for first in range(0, len(events), ROW_EVENTS):
        part = events[first : first + ROW_EVENTS]
        body = b"".join(part)
        seq += len(part)
        crc = zlib.crc32(body, crc)
        rows.append((seq, crc, body))
    return rows, End(seq=seq, crc=crc)


def unpack(rows: Sequence[Row], after: End, path: Path) -> tuple[list[LedgerEvent], End]:
    """Check rows, at least one, that continue a record, and decode their events; returns its new end as well.

    Raises:
        CorruptLedger: An event is not what was written; it is named by its number.
        UserError: It is, but this version does not know it.
    """
    seq, crc, _ = rows[-1]
    try:
        body = b"".join([body for _, _, body in rows])
        if zlib.crc32(body, after.crc) == crc:
            return _decode(body, seq - after.seq), End(seq=seq, crc=crc)
    except (TypeError, msgspec.DecodeError):  # TypeError: a flipped bit in the type of a column
        pass
    raise _first_damage(rows, after, path)


def _decode(body: bytes, count: int) -> list[LedgerEvent]:
    """Decode ``count`` events at once: the header of an array is all that they lack to be one message."""
    if not 0 < count <= len(body):  # before so many places are made for them
        raise msgspec.DecodeError(f"{count} events in {len(body)} bytes")
    return _decoder.decode(b"\xdd" + count.to_bytes(4, "big") + body)


def _first_damage(rows: Sequence[Row], after: End, path: Path) -> ConductorError:
    for seq, crc, body in rows:
        damage = CorruptLedger(f"{_name(after.seq, seq)} of the ledger {path}: not what was written")
        try:
            if zlib.crc32(body, after.crc) != crc:
                return damage
            _decode(body, seq - after.seq)
        except msgspec.ValidationError as exc:
            return UserError(
                f"{_name(after.seq, seq)} of the ledger {path}: whole, but not of this version ({exc}); "
                "resume with the version that wrote it"
            )
        except (TypeError, msgspec.DecodeError):
            return damage
        after = End(seq=seq, crc=crc)
    raise AssertionError("each row is right and all together are wrong")


def _name(after: int, last: int) -> str:
    if last == after + 1:
        return f"event {last}"
    return f"events {after + 1} to {last}" if last > after else f"what follows event {after}"
