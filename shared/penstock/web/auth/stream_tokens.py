"""Issues, checks, extends and revokes stream tokens.

A stream token is an opaque, long-lived token that can only open event streams.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Final, Protocol

import orjson

from penstock.web.auth.errors import invalid_token, unavailable
from penstock.web.auth.grants import EVERYBODY, Grant
from penstock.web.auth.identity import Identity
from penstock.web.auth.scopes import STREAM_TOKEN
from penstock.web.problems import Problem
from penstock.web.read_scheduler import ReadScheduler

PREFIX: Final = "pst_"
MAX_PER_USER: Final = 100
FIRST: Final = (float("-inf"), "")  # The place before all tokens.
USED_EVERY_S: Final = 60.0  # Seconds between two updates of a token's `last_used_at`.
_ID_CHARS: Final = 32
_TOKEN = re.compile(r"pst_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{32}")


class StoredValue(Protocol):
    """A value of the store, with its revision."""

    @property
    def value(self) -> bytes:
        """The bytes of the value."""
        ...

    @property
    def revision(self) -> int:
        """The revision of the value."""
        ...


class TokenStore(Protocol):
    """The store of tokens. `penstock.service` implements this protocol with the bucket `tokens`."""

    async def get(self, key: str) -> StoredValue | None:
        """Return the current value; None if the key does not exist."""
        ...

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write a new key and return the revision; None if the key exists."""
        ...

    async def update(
        self, key: str, value: bytes, revision: int, ttl_s: float | None = None
    ) -> int | None:
        """Replace the value if it still has `revision`, and return the new revision.

        Return None if the value has another revision or was deleted.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Delete the key."""
        ...

    async def page(
        self, user_id: str | None, after: tuple[float, str], now: float, limit: int
    ) -> Sequence[StoredValue]:
        """Return up to `limit` values of tokens, in the order of (`created_at`, id).

        Only tokens of `user_id` are returned. If `user_id` is None, tokens of all users are
        returned. Only tokens that come after the place `after`, and that expire later than `now`
        (Unix seconds), are returned. If fewer than `limit` values are returned, there are no more.
        """
        ...


@dataclass(frozen=True, slots=True)
class StreamToken:
    """The record of a token, without the token itself. Times are Unix seconds."""

    id: str
    user_id: str
    name: str
    created_at: float
    expires_at: float
    subjects: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()  # `Grant` describes this field.
    last_used_at: float | None = None  # Updated at most every `USED_EVERY_S` seconds.


@dataclass(frozen=True, slots=True)
class _Found:
    """A token with its revision in the store."""

    token: StreamToken
    digest: str
    revision: int


class StreamTokens:
    """Issues, checks, extends and revokes stream tokens.

    The store contains a SHA-256 of each token. The hash needs no salt, because nobody can guess a
    token of 256 random bits. The first half of the hash is the token's key in the store, and also
    the id of the token in lists and revocations.
    """

    def __init__(
        self,
        store: TokenStore,
        unavailable_on: type[Exception],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the store, and the exception that the store raises if it cannot be reached.

        `now` returns Unix seconds from a clock that all processes that check tokens share.
        """
        self.now = now
        self._store = store
        self._unavailable_on = unavailable_on
        self._turns = ReadScheduler()
        # Maps a token's id to the time, in Unix seconds, at which this process last recorded a use
        # of the token.
        self._noted: dict[str, float] = {}

    async def issue(
        self,
        owner: Identity,
        name: str,
        lifetime_s: float,
        *,
        subjects: Sequence[str] = (),
        runs: Sequence[str] = (),
        sessions: Sequence[str] = (),
        users: Sequence[str] = (),
    ) -> tuple[str, StreamToken]:
        """Return a new token and its record. The store contains only a hash of the token.

        `users` has the users whose runs the token may follow. If `users` is empty, the token may
        follow the owner's runs. Raises Problem 403 if the owner may not see the runs of these
        users, and 409 if the owner has too many tokens.
        """
        _check_reach(owner, users)
        if len(await self._read(owner, owner.user_id, FIRST, MAX_PER_USER)) >= MAX_PER_USER:
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
            tuple(dict.fromkeys(users)),
        )
        try:
            await self._store.create(record.id, _written(record, digest), lifetime_s)
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        return token, record

    async def identify(self, token: str) -> Identity:
        """Return the caller of a token.

        Raises Refused 401 for an invalid token, and 503 if the store cannot be reached.
        """
        if not _TOKEN.fullmatch(token):
            raise invalid_token("this is no stream token")
        digest = _digest(token)
        found = await self._find(digest[:_ID_CHARS])
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise invalid_token("the stream token is unknown, has expired or was revoked")
        await self._note_use(found)
        record = found.token
        return Identity(
            record.user_id,
            STREAM_TOKEN,
            "stream_token",
            record.expires_at,
            Grant(
                record.id,
                record.subjects,
                record.runs,
                record.sessions,
                record.users,
                record.name,
            ),
        )

    async def listed(
        self, identity: Identity, after: tuple[float, str] = FIRST, limit: int = MAX_PER_USER
    ) -> list[StreamToken]:
        """Return the caller's tokens, the oldest first.

        With the scope `administer`, return the tokens of all users.

        Only tokens after the place `after` are returned. `after` is the (`created_at`, id) of
        another token.
        """
        user_id = None if identity.has_scope("administer") else identity.user_id
        return await self._read(identity, user_id, after, limit)

    async def revoke(self, identity: Identity, token_id: str) -> None:
        """Revoke a token. Raises Problem 404 for an unknown token or another user's token."""
        await self._managed(identity, token_id)
        try:
            await self._store.delete(token_id)
        except self._unavailable_on as error:
            raise _out_of_reach() from error

    async def extend(self, identity: Identity, token_id: str, lifetime_s: float) -> StreamToken:
        """Set a token's expiry to `lifetime_s` seconds from now.

        Streams that were opened with the token then end at the new expiry.

        Raises Problem 404 for an unknown token or another user's token. Raises Problem 403 if the
        token names users whose runs the caller may not see now.
        """
        while True:
            found = await self._managed(identity, token_id)
            _check_reach(identity, found.token.users)
            token = replace(found.token, expires_at=self.now() + lifetime_s)
            try:
                if await self._write(found, token) is not None:
                    return token
            except self._unavailable_on as error:
                raise _out_of_reach() from error

    async def expiry_of(self, token_id: str) -> float | None:
        """Return the current expiry of a token in Unix seconds; None if the token was revoked.

        Each call counts as a use of the token, because open streams call this method. Raises
        Refused 503 if the store cannot be reached.
        """
        found = await self._find(token_id)
        if found is None:
            return None
        await self._note_use(found)
        return found.token.expires_at

    async def _managed(self, identity: Identity, token_id: str) -> _Found:
        found = await self._find(token_id) if _ID.fullmatch(token_id) else None
        if found is None or not _manages(identity, found.token):
            raise Problem(404, "there is no such stream token")
        return found

    async def _note_use(self, found: _Found) -> None:
        """Record a use of the token, at most once a minute.

        If the store cannot be reached, do nothing.
        """
        now, last_s = self.now(), found.token.last_used_at
        if last_s is not None and now - last_s < USED_EVERY_S:
            return
        if now - self._noted.get(found.token.id, -USED_EVERY_S) < USED_EVERY_S:
            return  # another request has just recorded a use
        self._noted = {id: at for id, at in self._noted.items() if now - at < USED_EVERY_S}
        self._noted[found.token.id] = now
        # If the token is changed or revoked at the same time, this use is not recorded.
        with contextlib.suppress(self._unavailable_on):
            await self._write(found, replace(found.token, last_used_at=now))

    async def _write(self, found: _Found, token: StreamToken) -> int | None:
        left_s = max(1.0, token.expires_at - self.now())
        document = _written(token, found.digest)
        return await self._store.update(token.id, document, found.revision, left_s)

    async def _find(self, token_id: str) -> _Found | None:
        try:
            stored = await self._store.get(token_id)
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        if stored is None:
            return None
        record, digest = _read(stored.value)
        # A store may delete expired keys late or never, so the expiry is checked here.
        return None if record.expires_at <= self.now() else _Found(record, digest, stored.revision)

    async def _read(
        self, who: Identity, user_id: str | None, after: tuple[float, str], limit: int
    ) -> list[StreamToken]:
        """Return tokens of a user, or of all users if `user_id` is None.

        The reads of different callers are done in turns.
        """
        async with self._turns.of(who.user_id):
            try:
                stored = await self._store.page(user_id, after, self.now(), limit)
            except self._unavailable_on as error:
                raise _out_of_reach() from error
        records = [_read(entry.value)[0] for entry in stored]
        # The store finds tokens with an index, which may be older than the values. So the user of
        # each value is checked again.
        return [each for each in records if user_id in (None, each.user_id)]


def _manages(identity: Identity, token: StreamToken) -> bool:
    return token.user_id == identity.user_id or identity.has_scope("administer")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(value: bytes) -> tuple[StreamToken, str]:
    document = orjson.loads(value)
    digest = document.pop("digest")
    for name in ("subjects", "runs", "sessions", "users"):
        document[name] = tuple(document.get(name, ()))  # older tokens have no `users`
    known = {each.name for each in fields(StreamToken)}
    return StreamToken(**{name: each for name, each in document.items() if name in known}), digest


def _written(token: StreamToken, digest: str) -> bytes:
    return orjson.dumps(asdict(token) | {"digest": digest})


def _check_reach(identity: Identity, users: Sequence[str]) -> None:
    """Raise Problem 403 if `users` names a user whose runs the caller may not see."""
    everybody = identity.has_scope("act-as") or identity.has_scope("administer")
    # In `users`, `*` means everybody. So if a caller's own name is `*`, this name gives the caller
    # no right to use `*`.
    own = frozenset({identity.user_id}) - {EVERYBODY}
    if not everybody and not own.issuperset(users):
        raise Problem(403, "users: runs of other users need the scope act-as or administer")


def _out_of_reach() -> Problem:
    return unavailable("the stream tokens are out of reach; try again")
