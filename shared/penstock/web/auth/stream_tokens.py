"""Issues, checks, extends and revokes stream tokens.

A stream token is an opaque, long-lived token that can only open event streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from penstock.web.auth.grants import EVERYBODY, STREAM_TOKEN, Grant
from penstock.web.auth.identity import Identity
from penstock.web.auth.token_records import Found, StoredValue, TokenBucket, TokenRecords
from penstock.web.problems import Problem, invalid_token
from penstock.web.read_scheduler import ReadScheduler

PREFIX: Final = "pst_"
MAX_PER_USER: Final = 100
FIRST: Final = (float("-inf"), "")  # The place before all tokens.


class StreamTokenBucket(TokenBucket, Protocol):
    """The bucket of stream tokens. `penstock.service` implements it with an index in memory."""

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
    tenant: str = ""  # of the user
    last_used_at: float | None = None  # to a minute


class StreamTokens:
    """Issues, checks, extends and revokes stream tokens. `TokenRecords` keeps them. Each method
    that reads or writes raises Problem 503 if the store cannot be reached."""

    def __init__(
        self,
        bucket: StreamTokenBucket,
        unavailable_on: type[Exception],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`bucket` raises `unavailable_on` if it cannot be reached. `now` returns Unix seconds from
        a clock that all processes that check tokens share."""
        self.now = now
        self._bucket = bucket
        self._records = TokenRecords(
            bucket,
            StreamToken,
            what="stream token",
            prefix=PREFIX,
            unavailable_on=(unavailable_on,),
            now=now,
        )
        self._turns = ReadScheduler()

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
        """Return a new token and its record.

        `users` has the users whose runs the token may follow. If `users` is empty, the token may
        follow the owner's runs. Raises Problem 403 if the owner may not see the runs of these
        users, and 409 if the owner has too many tokens.
        """
        _check_reach(owner, users)
        if len(await self._read(owner, owner.user_id, FIRST, MAX_PER_USER)) >= MAX_PER_USER:
            raise Problem(409, f"there are {MAX_PER_USER} tokens of this user; revoke some")
        secret, now = self._records.new(), self.now()
        token = StreamToken(
            id=secret.id,
            user_id=owner.user_id,
            name=name,
            created_at=now,
            expires_at=now + lifetime_s,
            subjects=tuple(subjects),
            runs=tuple(runs),
            sessions=tuple(sessions),
            users=tuple(dict.fromkeys(users)),
            tenant=owner.tenant,
        )
        await self._records.add(secret, token)
        return secret.text, token

    async def identify(self, token: str) -> Identity:
        """Return the caller of a token. Raises Problem 401 if it is invalid."""
        found = await self._records.find(token)
        if found is None:
            raise invalid_token("the stream token is unknown, has expired or was revoked")
        await self._records.note_use(found)
        record = found.record
        grant = Grant(
            token_id=record.id,
            subjects=record.subjects,
            runs=record.runs,
            sessions=record.sessions,
            users=record.users,
            name=record.name,
        )
        return Identity(
            record.user_id,
            STREAM_TOKEN,
            "stream_token",
            record.expires_at,
            grant,
            tenant=record.tenant,
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
        await self._records.delete(token_id)

    async def extend(self, identity: Identity, token_id: str, lifetime_s: float) -> StreamToken:
        """Set a token's expiry to `lifetime_s` seconds from now.

        Streams that were opened with the token then end at the new expiry.

        Raises Problem 404 for an unknown token or another user's token. Raises Problem 403 if the
        token names users whose runs the caller may not see now.
        """
        while True:
            found = await self._managed(identity, token_id)
            _check_reach(identity, found.record.users)
            token = replace(found.record, expires_at=self.now() + lifetime_s)
            if await self._records.replace(found, token):
                return token

    async def expiry_of(self, token_id: str) -> float | None:
        """Return the current expiry of a token in Unix seconds; None if the token was revoked. Each
        call counts as a use of the token, because open streams call this method."""
        found = await self._records.get(token_id)
        if found is None:
            return None
        await self._records.note_use(found)
        return found.record.expires_at

    async def _managed(self, identity: Identity, token_id: str) -> Found[StreamToken]:
        found = await self._records.get(token_id)
        if found is None or not identity.manages(found.record.user_id):
            raise Problem(404, "there is no such stream token")
        return found

    async def _read(
        self, who: Identity, user_id: str | None, after: tuple[float, str], limit: int
    ) -> list[StreamToken]:
        """Return tokens of a user, or of all users if `user_id` is None. The reads of different
        callers are done in turns."""
        async with self._turns.of(who.tenant_user):
            with self._records.reaching():
                stored = await self._bucket.page(user_id, after, self.now(), limit)
        records = self._records.valid(stored)
        # The store finds tokens with an index, which may be older than the values. So the user of
        # each value is checked again.
        return [each for each in records if user_id in (None, each.user_id)]


def _check_reach(identity: Identity, users: Sequence[str]) -> None:
    everybody = identity.has_scope("act-as") or identity.has_scope("administer")
    # In `users`, `*` means everybody. So if a caller's own name is `*`, this name gives the caller
    # no right to use `*`.
    own = frozenset({identity.user_id}) - {EVERYBODY}
    if not everybody and not own.issuperset(users):
        raise Problem(403, "users: runs of other users need the scope act-as or administer")
