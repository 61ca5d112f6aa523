"""Stores stream tokens in KV `tokens`, and lists them from an index in memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import orjson

from penstock import telemetry
from penstock.bus import Bus, Entry
from penstock.bus.state.bucket_index import BucketIndex, Change, IndexRows, number_of

log = logging.getLogger(__name__)

BUCKET: Final = "tokens"
# The seconds for which the row of an expired token is kept. Expired tokens are not listed. This
# time must be longer than the difference between the clocks of two machines, so that no valid token
# loses its row.
EXPIRED_S: Final = 86_400.0
_PUT: Final = (
    "INSERT INTO tokens VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
    " owner = excluded.owner, created = excluded.created, expires = excluded.expires,"
    " seq = excluded.seq"
)


class TokenRows(IndexRows):
    """The rows of all tokens. `created` and `expires` are in Unix seconds."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(
            "tokens",
            "CREATE TABLE tokens(key TEXT PRIMARY KEY, owner INT, created REAL, expires REAL,"
            " seq INT)",
            "CREATE INDEX tokens_by_owner ON tokens(owner, created, key, expires)",
            "CREATE INDEX tokens_by_creation ON tokens(created, key, expires)",
        )
        self._clock = bus.clock

    def put(self, changes: Sequence[Change]) -> None:
        self.upsert(changes, _rows, _PUT)

    def forget_before(self, sequence: int, limit: int) -> bool:
        """Drop the rows of expired tokens, and then do the same as `IndexRows.forget_before`."""
        self.write("DELETE FROM tokens WHERE expires < ?", [(self._clock.time() - EXPIRED_S,)])
        return super().forget_before(sequence, limit)

    def after(
        self, owner: str | None, created: float, key: str, now: float, limit: int
    ) -> list[tuple[float, str]]:
        """Return the next tokens that have not expired, the oldest first, as (created, key)."""
        base = "WHERE" if owner is None else "WHERE owner = ? AND"
        given = () if owner is None else (number_of(owner),)
        return [
            (float(at), str(token))
            for at, token in self.rows(
                f"SELECT created, key FROM tokens {base} (created, key) > (?, ?) AND expires > ?"
                " ORDER BY created, key LIMIT ?",
                (*given, created, key, now, limit),
            )
        ]


class TokenIndex:
    """The `TokenStore` of `penstock.web.auth.stream_tokens`, on KV `tokens`."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket(BUCKET)
        self.rows = TokenRows(bus)
        self.index = BucketIndex(bus, BUCKET, self.rows)
        self.get = self._bucket.get
        self.create = self._bucket.create
        self.update = self._bucket.update

    async def delete(self, key: str) -> bool:
        return await self._bucket.delete(key)

    async def page(
        self, user_id: str | None, after: tuple[float, str], now: float, limit: int
    ) -> list[Entry]:
        """Return tokens in the order of their creation."""
        await self.index.caught_up()
        found: list[Entry] = []
        while len(found) < limit:
            missing = limit - len(found)
            places = self.rows.after(user_id, *after, now, missing)
            values = await self.index.values([key for _, key in places])
            found += [values[key] for _, key in places if key in values]
            if len(places) < missing:
                break
            after = places[-1]
        return found


def _rows(change: Change) -> list[tuple[str, int, float, float, int]]:
    try:
        record = orjson.loads(change.value or b"")
        owner, digest = record["user_id"], record["digest"]
        created, expires = float(record["created_at"]), float(record["expires_at"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        owner = digest = None
    if not isinstance(owner, str) or not isinstance(digest, str):
        telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
        log.warning(
            "stream token %s: its record in KV %s cannot be read; lists of tokens leave the token "
            "out. Delete the record",
            change.key,
            BUCKET,
        )
        return []
    return [(change.key, number_of(owner), created, expires, change.sequence)]
