"""Issues, checks and revokes service tokens.

A service token is an opaque credential of a machine, with a fixed list of rights.
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
from typing import Any, Final, Protocol

import orjson

from penstock.web.auth.errors import invalid_token, unavailable
from penstock.web.auth.grants import ServiceGrant
from penstock.web.auth.identity import SERVICE_PREFIX, Identity
from penstock.web.problems import Problem

PREFIX: Final = "psv_"
# The scopes that a service token can have. `act-as` is missing, so a service token cannot act for
# all users. `administer` is missing, so a service token cannot make tokens.
RIGHTS: Final = frozenset({"start", "read", "raw", "decide", "automate"})
MAX_TOKENS: Final = 1000
USED_EVERY_S: Final = 60.0  # Seconds between two updates of a token's `last_used_at`.
# The first part of each key, before a dot; keys of stream tokens have no dot.
_KEYS: Final = "service"
_ID_CHARS: Final = 32
_TOKEN = re.compile(r"psv_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{32}")
_LISTS: Final = ("scopes", "roles", "agents", "tools", "rules", "on_behalf_of")


class StoredValue(Protocol):
    """The stored value of a key."""

    @property
    def value(self) -> bytes:
        """The bytes of the value."""
        ...

    @property
    def revision(self) -> int:
        """The revision of the value."""
        ...


class ServiceTokenStore(Protocol):
    """The bucket `tokens` of `penstock.bus`. `get` returns what the stream's leader has."""

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

        Return None if the value was changed or deleted.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Delete the key."""
        ...

    async def entries(self, pattern: str = ">") -> Sequence[StoredValue]:
        """Return the values of all keys that match."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceToken:
    """The record of a service token, without the token itself. Times are Unix seconds."""

    id: str
    name: str
    scopes: tuple[str, ...]
    roles: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    on_behalf_of: tuple[str, ...] = ()
    created_by: str
    created_at: float
    expires_at: float
    last_used_at: float | None = None  # updated at most every `USED_EVERY_S` seconds

    @property
    def user_id(self) -> str:
        """The name of the user for the token's requests.

        Tokens with the same name act as the same user.
        """
        return f"{SERVICE_PREFIX}{self.name}"

    def identity(self) -> Identity:
        """Return the caller of a request with this token."""
        limits = (self.agents, self.tools, self.rules, self.on_behalf_of)
        return Identity(
            self.user_id,
            frozenset(self.scopes) & RIGHTS,
            "service",
            self.expires_at,
            roles=frozenset(self.roles),
            service=ServiceGrant(self.id, *limits, made_by=self.created_by),
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A token with its revision in the store."""

    token: ServiceToken
    digest: str
    revision: int


class ServiceTokens:
    """Issues, checks and revokes service tokens.

    The store contains a SHA-256 of each token, as for stream tokens. Each request reads the store.
    So after a token was revoked, every process refuses it.
    """

    def __init__(
        self,
        store: ServiceTokenStore,
        unavailable_on: type[Exception],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the store, and the exception that the store raises if it cannot be reached.

        `now` returns Unix seconds from a clock that all processes that check tokens share.
        """
        self.now = now
        self._store = store
        self._unavailable_on = unavailable_on
        # maps a token's id to the time at which this process last recorded a use of the token
        self._noted: dict[str, float] = {}

    async def issue(
        self, owner: Identity, name: str, lifetime_s: float, **rights: Sequence[str]
    ) -> tuple[str, ServiceToken]:
        """Return a new token and its record. The store contains only a hash of the token.

        `rights` are the fields of `ServiceToken` that are lists. Raises Problem 422 for rights that
        do not go together, 409 if there are too many tokens, and 503 if the store cannot be
        reached.
        """
        check_rights(rights)
        if len(await self.listed()) >= MAX_TOKENS:
            raise Problem(409, f"there are {MAX_TOKENS} service tokens; revoke some")
        secret = PREFIX + secrets.token_urlsafe(32)
        digest = _digest(secret)
        now = self.now()
        lists: dict[str, Any] = {
            name: tuple(dict.fromkeys(rights.get(name, ()))) for name in _LISTS
        }
        token = ServiceToken(
            id=digest[:_ID_CHARS],
            name=name,
            created_by=owner.user_id,
            created_at=now,
            expires_at=now + lifetime_s,
            **lists,
        )
        try:
            await self._store.create(_key(token.id), _written(token, digest), lifetime_s)
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        return secret, token

    async def identify(self, token: str) -> Identity:
        """Return the caller of a token.

        Raises Refused 401 if the token is invalid, and 503 if the store cannot be reached.
        """
        if not _TOKEN.fullmatch(token):
            raise invalid_token("this is no service token")
        digest = _digest(token)
        found = await self._find(digest[:_ID_CHARS])
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise invalid_token("the service token is unknown, has expired or was revoked")
        await self._note_use(found)
        return found.token.identity()

    async def listed(self) -> list[ServiceToken]:
        """Return all tokens that have not expired, the oldest first.

        Raises Refused 503 if the store cannot be reached.
        """
        try:
            stored = await self._store.entries(_key("*"))
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        tokens = (_read(entry.value)[0] for entry in stored)
        valid = (token for token in tokens if token.expires_at > self.now())
        return sorted(valid, key=lambda token: (token.created_at, token.id))

    async def revoke(self, token_id: str) -> None:
        """Revoke a token.

        Raises Problem 404 for an unknown token, and Refused 503 if the store cannot be reached.
        """
        if not _ID.fullmatch(token_id) or await self._find(token_id) is None:
            raise Problem(404, "there is no such service token")
        try:
            await self._store.delete(_key(token_id))
        except self._unavailable_on as error:
            raise _out_of_reach() from error

    async def expiry_of(self, token_id: str) -> float | None:
        """Return the current expiry in Unix seconds; None if the token was revoked.

        Raises Refused 503 if the store cannot be reached.
        """
        found = await self._find(token_id)
        return found.token.expires_at if found is not None else None

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
        used = replace(found.token, last_used_at=now)
        left_s = max(1.0, used.expires_at - now)
        # The update requires the revision that was read. So if the token is revoked at the same
        # time, the update fails and does not restore the token.
        with contextlib.suppress(self._unavailable_on):
            written = _written(used, found.digest)
            await self._store.update(_key(used.id), written, found.revision, left_s)

    async def _find(self, token_id: str) -> _Found | None:
        try:
            stored = await self._store.get(_key(token_id))
        except self._unavailable_on as error:
            raise _out_of_reach() from error
        if stored is None:
            return None
        token, digest = _read(stored.value)
        # A store may delete expired keys late or never, so the expiry is checked here.
        return None if token.expires_at <= self.now() else _Found(token, digest, stored.revision)


def check_rights(rights: dict[str, Sequence[str]]) -> None:
    """Raise Problem 422 for rights that a service token cannot have, or that do not go together.

    Limits and `on_behalf_of` apply only to decisions. So a token with limits may have only the
    scopes `decide` and `read`, because its other rights would not be limited. A rule of automations
    decides with the rights of its owner. If a token could both write rules and decide, its rules
    would decide without the token's limits and even after the token's end. So no token may have
    both scopes.
    """
    scopes = set(rights.get("scopes", ()))
    limited = [name for name in ("agents", "tools", "rules", "on_behalf_of") if rights.get(name)]
    if not scopes:
        raise Problem(422, f"scopes: name at least one of {', '.join(sorted(RIGHTS))}")
    if unknown := scopes - RIGHTS:
        names = ", ".join(sorted(unknown))
        raise Problem(422, f"scopes: {names}: none of {', '.join(sorted(RIGHTS))}")
    if limited and (scopes - {"decide", "read"} or "decide" not in scopes):
        raise Problem(
            422,
            f"{', '.join(limited)}: limits are for tokens with the scope decide, and perhaps read, "
            "alone; make another token for the other scopes",
        )
    if {"automate", "decide"} <= scopes:
        raise Problem(422, "scopes: a token with automate cannot have decide; make two tokens")


def _key(token_id: str) -> str:
    return f"{_KEYS}.{token_id}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(value: bytes) -> tuple[ServiceToken, str]:
    document = orjson.loads(value)
    digest = document.pop("digest")
    known = {each.name for each in fields(ServiceToken)}
    given = {name: each for name, each in document.items() if name in known}
    return ServiceToken(**{**given, **{name: tuple(given[name]) for name in _LISTS}}), digest


def _written(token: ServiceToken, digest: str) -> bytes:
    return orjson.dumps(asdict(token) | {"digest": digest})


def _out_of_reach() -> Problem:
    return unavailable("the service tokens are out of reach; try again")
