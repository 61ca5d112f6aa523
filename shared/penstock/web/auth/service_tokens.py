"""Issues, checks and revokes service tokens.

A service token is an opaque credential of a machine, with a fixed list of rights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.web.auth.grants import ServiceGrant
from penstock.web.auth.identity import SERVICE_PREFIX, Identity
from penstock.web.auth.token_records import StoredValue, TokenBucket, TokenRecords
from penstock.web.problems import Problem, invalid_token

PREFIX: Final = "psv_"
# The scopes that a service token can have. `act-as` is missing, so a service token cannot act for
# all users. `administer` is missing, so a service token cannot make tokens.
RIGHTS: Final = frozenset({"start", "read", "raw", "decide", "automate"})
MAX_TOKENS: Final = 1000
_KEYS: Final = "service."  # keys of stream tokens have no dot
_LISTS: Final = ("scopes", "roles", "agents", "tools", "rules", "on_behalf_of")


class ServiceTokenBucket(TokenBucket, Protocol):
    """The bucket of service tokens."""

    async def entries(self, pattern: str = ">") -> Sequence[StoredValue]: ...


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
    tenant: str = ""  # of the user who made the token
    created_at: float
    expires_at: float
    last_used_at: float | None = None  # to a minute

    @property
    def user_id(self) -> str:
        """The name of the user for the token's requests. Tokens with the same name act as the same
        user."""
        return f"{SERVICE_PREFIX}{self.name}"

    def identity(self) -> Identity:
        limits = (self.agents, self.tools, self.rules, self.on_behalf_of)
        return Identity(
            self.user_id,
            frozenset(self.scopes) & RIGHTS,
            "service",
            self.expires_at,
            roles=frozenset(self.roles),
            service=ServiceGrant(self.id, *limits, made_by=self.created_by),
            tenant=self.tenant,
        )


class ServiceTokens:
    """Issues, checks and revokes service tokens. `TokenRecords` keeps them. Each method that reads
    or writes raises Problem 503 if the store cannot be reached."""

    def __init__(
        self,
        bucket: ServiceTokenBucket,
        unavailable_on: type[Exception],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`bucket` raises `unavailable_on` if it cannot be reached. `now` returns Unix seconds from
        a clock that all processes that check tokens share."""
        self.now = now
        self._bucket = bucket
        self._records = TokenRecords(
            bucket,
            ServiceToken,
            what="service token",
            prefix=PREFIX,
            keys=_KEYS,
            unavailable_on=(unavailable_on,),
            now=now,
        )

    async def issue(
        self, owner: Identity, name: str, lifetime_s: float, **rights: Sequence[str]
    ) -> tuple[str, ServiceToken]:
        """Return a new token and its record.

        `rights` are the fields of `ServiceToken` that are lists. Raises Problem 422 for rights that
        do not go together, and 409 if there are too many tokens.
        """
        check_rights(rights)
        listed = await self.listed()
        if len(listed) >= MAX_TOKENS:
            raise Problem(409, f"there are {MAX_TOKENS} service tokens; revoke some")
        # Half of all places stay free for other tenants.
        most, tenant = MAX_TOKENS // 2, owner.tenant
        if tenant and sum(each.tenant == tenant for each in listed) >= most:
            raise Problem(409, f"there are {most} service tokens of this tenant; revoke some")
        secret, now = self._records.new(), self.now()
        lists: dict[str, Any] = {
            name: tuple(dict.fromkeys(rights.get(name, ()))) for name in _LISTS
        }
        token = ServiceToken(
            id=secret.id,
            name=name,
            created_by=owner.user_id,
            tenant=owner.tenant,
            created_at=now,
            expires_at=now + lifetime_s,
            **lists,
        )
        await self._records.add(secret, token)
        return secret.text, token

    async def identify(self, token: str) -> Identity:
        """Return the caller of a token. Raises Problem 401 if it is invalid."""
        found = await self._records.find(token)
        if found is None:
            raise invalid_token("the service token is unknown, has expired or was revoked")
        await self._records.note_use(found)
        return found.record.identity()

    async def listed(self) -> list[ServiceToken]:
        """Return all tokens that have not expired, the oldest first."""
        with self._records.reaching():
            stored = await self._bucket.entries(self._records.key("*"))
        valid = self._records.valid(stored)
        return sorted(valid, key=lambda token: (token.created_at, token.id))

    async def revoke(self, token_id: str) -> None:
        """Revoke a token. Raises Problem 404 for an unknown token."""
        if await self._records.get(token_id) is None:
            raise Problem(404, "there is no such service token")
        await self._records.delete(token_id)

    async def expiry_of(self, token_id: str) -> float | None:
        """Return the current expiry in Unix seconds; None if the token was revoked."""
        found = await self._records.get(token_id)
        return found.record.expires_at if found is not None else None


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
