"""Stores a record of each leg that a connector holds: KV `claims`, key `active.<pod>.<run>`.

The record of a leg has all data that another connector needs to continue the leg. The value is the
leg's facts, followed by the command's payload as it is in the stream. The payload of a large
command is only a reference to the object store, so the record stays small.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, NamedTuple

import orjson

from penstock.bus import Bus

CommandKind = Literal["start", "continue"]


@dataclass(frozen=True, slots=True)
class LegRecord:
    """A leg, the command that opened the leg, and the agent server's id of the run, if known."""

    leg: int  # the number of the leg; 1 for a start
    sequence: int  # the command's sequence in its stream, which orders the session's queue
    kind: CommandKind
    command: bytes  # the command's payload; if the payload is large, a reference
    after: int = 0  # RAW's sequence of the run's last frame before the `open`; 0 if there is none
    approval_id: str | None = None  # the id of the approval whose decision the leg sends
    upstream_run_id: str | None = None

    def dump(self) -> bytes:
        """Return the record's value: the facts as JSON, a newline, and the command."""
        facts = asdict(replace(self, command=b""))
        del facts["command"]
        return orjson.dumps(facts) + b"\n" + self.command

    @classmethod
    def parse(cls, value: bytes) -> LegRecord | None:
        """Return the record in this value; None for a value of an old release, which has no facts.

        Facts that only a later release knows are dropped.
        """
        facts, _, command = value.partition(b"\n")
        if not command:
            return None
        known = {key: fact for key, fact in orjson.loads(facts).items() if key in _FACTS}
        return cls(**known, command=command)


_FACTS = frozenset(each.name for each in fields(LegRecord)) - {"command"}


class StoredLeg(NamedTuple):
    """A stored leg record; `record` is None if it has no facts, or if there is no record."""

    record: LegRecord | None
    revision: int  # the record's revision; 0 when there is no record


class LegRecords:
    """Writes this connector's leg records, and reads the leg records of all connectors; all methods
    may raise BusError."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._pod = pod
        self._bucket = bus.bucket("claims")

    async def put(self, run_id: str, record: LegRecord) -> None:
        """Record that this connector holds a leg of the run.

        If this connector dies, other connectors find the leg only by this record.
        """
        await self._bucket.put(f"active.{self._pod}.{run_id}", record.dump())

    async def delete(self, run_id: str) -> None:
        """Delete this connector's record; the leg has ended, or another connector holds the leg."""
        await self._bucket.delete(f"active.{self._pod}.{run_id}")

    async def delete_of(self, pod: str, run_id: str, revision: int) -> None:
        """Delete another connector's record if the record still has this revision.

        The record may have changed since it was read: a connector that is alive may have opened the
        run's next leg. Without the revision, the record of the next leg would be deleted.
        """
        await self._bucket.delete(f"active.{pod}.{run_id}", revision)

    async def exists(self, run_id: str, pod: str) -> bool:
        """Return whether the connector holds a leg of the run, or died before it deleted the
        record."""
        return await self._bucket.get(f"active.{pod}.{run_id}") is not None

    async def read(self, run_id: str, pod: str) -> StoredLeg:
        """Return the connector's record of the run."""
        entry = await self._bucket.get(f"active.{pod}.{run_id}")
        if entry is None:
            return StoredLeg(None, 0)
        return StoredLeg(LegRecord.parse(entry.value), entry.revision)

    async def find(self, pod: str = "*", run_id: str = "*") -> list[tuple[str, str]]:
        """Return (pod, run) of every record; with `pod` or `run_id`, only of the matching
        records."""
        pairs = []
        for key in await self._bucket.keys(f"active.{pod}.{run_id}"):
            _, holder, held = key.split(".")
            pairs.append((holder, held))
        return pairs
