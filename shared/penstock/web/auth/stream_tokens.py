"""Stream tokens: opaque, long-lived, revocable, and good for reading event streams only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import orjson

from penstock.web.auth.errors import invalid_token, unavailable
from penstock.web.auth.grants import Grant
from penstock.web.auth.identity import Identity
from penstock.web.auth.scopes import STREAM_TOKEN
from penstock.web.problems import Problem

PREFIX: Final = "pst_"
MAX_PER_USER: Final = 100
_ID_CHARS: Final = 32
_TOKEN = re.compile(r"pst_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{32}")


class StoredValue(Protocol):
    """A key's value."""

    @property
    def value(self) -> bytes:
        """What was written."""
        ...


class TokenStore(Protocol):
    """Where tokens are kept: the bucket `tokens`, as `penstock.bus` gives it."""

    async def get(self, key: str) -> StoredValue | None:
        """The value as it stands now; None when there is none."""
        ...

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write where there is nothing; None when there is something."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete it."""
        ...

    async def entries(self, pattern: str = ">") -> Sequence[StoredValue]:
        """All that stands."""
        ...


@dataclass(frozen=True, slots=True)
class StreamToken:
    """What is known of a token; the token itself is not. Times are Unix seconds."""

    id: str
    user_id: str
    name: str
    created_at: float
    expires_at: float
    subjects: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()


class StreamTokens:
    """Issues, finds and revokes them.

    Kept by a SHA-256 of the token: 256 random bits cannot be guessed from it, so it needs no salt.
    The first half of the hash is the key, and the id by which a token is listed and revoked.
    """

    def __init__(
        self,
        store: TokenStore,
        unavailable_on: type[Exception],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`unavailable_on`: what the store raises while it cannot be reached.

        `now`: Unix seconds, of a clock that all who check the tokens share.
        """
        self.now = now
        self._store = store
        self._unavailable_on = unavailable_on

    async def issue(
        self,
        owner: Identity,
        name: str,
        lifetime_s: float,
        *,
        subjects: Sequence[str] = (),
        runs: Sequence[str] = (),
        sessions: Sequence[str] = (),
    ) -> tuple[str, StreamToken]:
        """A new token, which nobody can be told again, and what is known of it.

        Raises Problem 409 when the user has too many.
        """
        if len([t for t in await self._all() if t.user_id == owner.user_id]) >= MAX_PER_USER:
            raise Problem(409, f"there are {MAX_PER_USER} tokens of this user; revoke some")
        token = PREFIX + secrets.token_urlsafe(32)
        digest = _digest(token)
        now = self.now()
        record = StreamToken(
            digest[:_ID_CHARS],
            owner.user_id,
            name,
            now,
            now + lifetime_s,
            tuple(subjects),
            tuple(runs),
            tuple(sessions),
        )
        document = orjson.dumps(asdict(record) | {"digest": digest})
        try:
            await self._store.create(record.id, document, lifetime_s)
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        return token, record

    async def identify(self, token: str) -> Identity:
        """Whom the token reads for. Raises Refused: 401 for one that does not hold, 503."""
        if not _TOKEN.fullmatch(token):
            raise invalid_token("this is no stream token")
        digest = _digest(token)
        found = await self._find(digest[:_ID_CHARS])
        if found is None or not hmac.compare_digest(found[1], digest):
            raise invalid_token("the stream token is unknown, has expired or was revoked")
        record = found[0]
        return Identity(
            record.user_id,
            STREAM_TOKEN,
            "stream_token",
            record.expires_at,
            Grant(record.id, record.subjects, record.runs, record.sessions),
        )

    async def listed(self, identity: Identity) -> list[StreamToken]:
        """Those of the caller, the oldest first; all of them with scope administer."""
        found = [token for token in await self._all() if _manages(identity, token)]
        return sorted(found, key=lambda token: token.created_at)

    async def revoke(self, identity: Identity, token_id: str) -> None:
        """It opens nothing more. Raises Problem 404 for one that is unknown or another user's."""
        found = await self._find(token_id) if _ID.fullmatch(token_id) else None
        if found is None or not _manages(identity, found[0]):
            raise Problem(404, "there is no such stream token")
        try:
            await self._store.delete(token_id)
        except self._unavailable_on as error:
            raise _out_of_reach() from error

    async def stands(self, token_id: str) -> bool:
        """Whether it holds still. Raises Refused 503."""
        return await self._find(token_id) is not None

    async def _find(self, token_id: str) -> tuple[StreamToken, str] | None:
        try:
            stored = await self._store.get(token_id)
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        if stored is None:
            return None
        record, digest = _read(stored.value)
        # the store's own expiry is to the second, and not everywhere
        return None if record.expires_at <= self.now() else (record, digest)

    async def _all(self) -> list[StreamToken]:
        try:
            stored = await self._store.entries()
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        now = self.now()
        records = [_read(entry.value)[0] for entry in stored]
        return [record for record in records if record.expires_at > now]


def _manages(identity: Identity, token: StreamToken) -> bool:
    return token.user_id == identity.user_id or identity.may("administer")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(value: bytes) -> tuple[StreamToken, str]:
    document = orjson.loads(value)
    digest = document.pop("digest")
    for name in ("subjects", "runs", "sessions"):
        document[name] = tuple(document[name])
    return StreamToken(**document), digest


def _out_of_reach() -> Problem:
    return unavailable("the stream tokens are out of reach; try again")
