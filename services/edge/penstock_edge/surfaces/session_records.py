"""Select the records of a user's sessions in KV `sessions`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from penstock.bus.records import SessionRecord
from penstock.bus.state.kv import Entry
from penstock.bus.subjects import session_key

log = logging.getLogger(__name__)


def records_of_user(entries: Iterable[Entry], user_id: str) -> Iterator[SessionRecord]:
    """Yield the records of this user's sessions among all entries of the bucket.

    A record does not name its user, so the key of the entry is compared. A record that cannot be
    read is logged and left out: otherwise one such record would fail the lists of all users.
    """
    for entry in entries:
        try:
            record = SessionRecord.model_validate_json(entry.value)
        except ValidationError as error:
            log.warning("the record %s in KV `sessions` cannot be read: %s", entry.key, error)
            continue
        if entry.key == session_key(user_id, record.agent, record.session_id):
            yield record
