"""Which legs a connector holds: KV `claims`, key `active.<pod>.<run>`.

The record of a leg is all that another connector needs to continue the leg. The record's value is
the facts, followed by the command's payload as it came from the stream. So a large command stays a
reference to the object store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, NamedTuple

import orjson

from penstock.bus import Bus

CommandKind = Literal["start", "continue"]


@dataclass(frozen=True, slots=True)
class LegRecord:
    """A leg, the command that opened it, and the server's id of the run where it gave one."""

    leg: int  # 1 for a start
    sequence: int  # of the command in its stream: the leg's place in the session's queue
    kind: CommandKind
    command: bytes  # the command's payload; a reference when it is large
    after: int = 0  # RAW's sequence of the run's last source frame before the `open`; 0 without one
    approval_id: str | None = None  # of the approval whose decision the leg sends
    upstream_run_id: str | None = None

    def dump(self) -> bytes:
        """The facts as JSON, a newline, the command."""
        facts = asdict(replace(self, command=b""))
        del facts["command"]
        return orjson.dumps(facts) + b"\n" + self.command

    @classmethod
    def parse(cls, value: bytes) -> LegRecord | None:
        """Parse a record; None for a record of an old release, which has no facts.

        Facts that only a later release knows are left out.
        """
        facts, _, command = value.partition(b"\n")
        if not command:
            return None
        known = {key: fact for key, fact in orjson.loads(facts).items() if key in _FACTS}
        return cls(**known, command=command)


_FACTS = frozenset(each.name for each in fields(LegRecord)) - {"command"}


class StoredLeg(NamedTuple):
    """A stored leg record. `record` is None if it has no facts, or if there is no record."""

    record: LegRecord | None
    revision: int  # 0 when there is no record


class LegRecords:
    """Writes this connector's leg records and reads all. All methods raise BusError."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._pod = pod
        self._bucket = bus.bucket("claims")

    async def put(self, run_id: str, record: LegRecord) -> None:
        """Record that this connector holds a leg of the run.

        Without the record, a connector that finds this one dead would not find the leg.
        """
        await self._bucket.put(f"active.{self._pod}.{run_id}", record.dump())

    async def delete(self, run_id: str) -> None:
        """Delete this connector's record: its leg has ended, or another connector holds it."""
        await self._bucket.delete(f"active.{self._pod}.{run_id}")

    async def delete_of(self, pod: str, run_id: str, revision: int) -> None:
        """Delete another connector's record if it still has that revision.

        Without this condition, a connector that lives would lose the record of its next leg.
        """
        await self._bucket.delete(f"active.{pod}.{run_id}", revision)

    async def exists(self, run_id: str, pod: str) -> bool:
        """Whether that connector holds a leg of the run, or ended before it deleted the record."""
        return await self._bucket.get(f"active.{pod}.{run_id}") is not None

    async def read(self, run_id: str, pod: str) -> StoredLeg:
        """That connector's record of the run."""
        entry = await self._bucket.get(f"active.{pod}.{run_id}")
        if entry is None:
            return StoredLeg(None, 0)
        return StoredLeg(LegRecord.parse(entry.value), entry.revision)

    async def find(self, pod: str = "*", run_id: str = "*") -> list[tuple[str, str]]:
        """Pod and run of every record, or only of the records of one pod or of one run."""
        pairs = []
        for key in await self._bucket.keys(f"active.{pod}.{run_id}"):
            _, holder, held = key.split(".")
            pairs.append((holder, held))
        return pairs
