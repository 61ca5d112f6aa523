"""Read, create and replace the records of approvals in KV `approvals`, by compare-and-set."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import NamedTuple

from pydantic import ValidationError

from penstock import log_fields
from penstock.bus import Bus, Entry, ObjectGone
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.write import objects

log = logging.getLogger(__name__)

BUCKET = "approvals"


class UnreadableRecord(Exception):
    """The error for a record that cannot be parsed. An operator must repair or delete it."""

    def __init__(self, approval_id: str, reason: str) -> None:
        super().__init__(
            f"the record of approval {approval_id} in KV {BUCKET} cannot be read ({reason}); "
            "repair or delete it"
        )


class StoredApproval(NamedTuple):
    """A record and the entry from which it was read."""

    record: ApprovalRecord
    entry: Entry


class ApprovalRecords:
    """The records of all approvals. A record's key is the approval's id."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)

    async def find(self, approval_id: str) -> StoredApproval | None:
        """Return the approval's record; None if there is none.

        Raises:
            UnreadableRecord: the record cannot be parsed.
            ObjectGone: the record was too large for KV, and its object was deleted.
            BusError: the bus does not answer.
        """
        entry = await self._bucket.get(approval_id)
        return await self._parsed(entry) if entry is not None else None

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        stored = await self.find(approval_id)
        return stored.record if stored is not None else None

    async def of(self, entry: Entry) -> ApprovalRecord:
        return (await self._parsed(entry)).record

    async def all(self) -> list[ApprovalRecord]:
        """Return every record, the newest first. Unreadable records are logged and left out."""
        records = []
        for entry in await self._bucket.entries("*"):
            try:
                records.append((await self._parsed(entry)).record)
            except (ObjectGone, UnreadableRecord) as error:
                log.warning("approval %s is left out of the list: %s", entry.key, error)
        return sorted(records, key=lambda record: record.requested_at, reverse=True)

    async def create(self, record: ApprovalRecord) -> bool:
        """Write an approval's first record; return False if the approval has a record already."""
        value = await self._value(record)
        return await self._bucket.create(record.approval_id, value) is not None

    async def replace(self, stored: StoredApproval, record: ApprovalRecord) -> bool:
        """Replace the record that was read; return False if the record has changed since then."""
        return await self._replace(stored, await self._value(record))

    async def touch(self, stored: StoredApproval) -> bool:
        """Write the same record as a new revision; return False if the record has changed."""
        return await self._replace(stored, stored.entry.value or b"")

    async def _replace(self, stored: StoredApproval, value: bytes) -> bool:
        entry = stored.entry
        return await self._bucket.update(entry.key, value, entry.revision) is not None

    async def _parsed(self, entry: Entry) -> StoredApproval:
        value = await objects.unwrap(self._bus, entry.value or b"")
        try:
            record = ApprovalRecord.model_validate_json(value)
        except ValidationError as error:
            raise UnreadableRecord(entry.key, first_fault(error)) from error
        log_fields.approval_of(record.run_id, record.approval_id)
        log_fields.traced(record.run_id, record.traceparent)
        return StoredApproval(record, entry)

    async def _value(self, record: ApprovalRecord) -> bytes:
        value = record.dump()
        # The object's name has a hash of its content, so that two decisions at the same time do not
        # overwrite each other's object. An erasure finds earlier versions by the approval's id.
        name = f"approval.{record.approval_id}.{sha256(value).hexdigest()}"
        return await objects.wrap(self._bus, name, value, record.run_id)


def first_fault(error: ValidationError) -> str:
    """Return the field and the reason of the first error, without the value."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, fault["loc"]))
    return f"{where}: {fault['msg']}" if where else fault["msg"]
