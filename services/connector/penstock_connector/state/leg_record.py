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
        facts = asdict(replace(self, command=b""))
        del facts["command"]
        return orjson.dumps(facts) + b"\n" + self.command

    @classmethod
    def parse(cls, value: bytes) -> LegRecord:
        """Return the record in this value, without facts that only a later release knows."""
        facts, _, command = value.partition(b"\n")
        known = {key: fact for key, fact in orjson.loads(facts).items() if key in _FACTS}
        return cls(**known, command=command)


_FACTS = frozenset(each.name for each in fields(LegRecord)) - {"command"}


class StoredLeg(NamedTuple):
    """A stored leg record, and its revision."""

    record: LegRecord
    revision: int


class LegRecords:
    """Writes this connector's leg records, and reads the leg records of all connectors."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._pod = pod
        self._bucket = bus.bucket("claims")

    async def put(self, run_id: str, record: LegRecord) -> None:
        """Record that this connector holds a leg of the run. If this connector dies, other
        connectors find the leg only by this record."""
        await self._bucket.put(f"active.{self._pod}.{run_id}", record.dump())

    async def delete(self, run_id: str) -> None:
        """Delete this connector's record; the leg has ended, or another connector holds the leg."""
        await self._bucket.delete(f"active.{self._pod}.{run_id}")

    async def delete_of(self, pod: str, run_id: str, revision: int) -> None:
        """Delete another connector's record if it still has this revision. That connector may be
        alive, and have opened the run's next leg since the record was read."""
        await self._bucket.delete(f"active.{pod}.{run_id}", revision)

    async def exists(self, run_id: str, pod: str) -> bool:
        """Return whether the connector holds a leg of the run, or died before it deleted the
        record."""
        return await self._bucket.get(f"active.{pod}.{run_id}") is not None

    async def read(self, run_id: str, pod: str) -> StoredLeg | None:
        entry = await self._bucket.get(f"active.{pod}.{run_id}")
        return StoredLeg(LegRecord.parse(entry.value), entry.revision) if entry else None

    async def find(self, pod: str = "*", run_id: str = "*") -> list[tuple[str, str]]:
        """Return (pod, run) of every record that matches."""
        pairs = []
        for key in await self._bucket.keys(f"active.{pod}.{run_id}"):
            _, holder, held = key.split(".")
            pairs.append((holder, held))
        return pairs
