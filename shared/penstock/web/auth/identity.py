"""Describes the caller of a request, with the caller's scopes and the users whose runs the caller
may see or start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from penstock.turns import TenantUser
from penstock.web.auth.grants import ANONYMOUS as ANONYMOUS_SCOPES
from penstock.web.auth.grants import EVERYBODY, Grant, Permission, ServiceGrant
from penstock.web.problems import Problem

Kind = Literal["bearer", "cookie", "stream_token", "service", "anonymous"]

ANONYMOUS_USER: Final = "anonymous"
# The first characters of the user id of each service token. No JWT may have such a subject.
SERVICE_PREFIX: Final = "service-token:"
# The keys of scope["state"] under which the router stores values for handlers.
IDENTITY: Final = "identity"
OVER: Final = "over"
STREAMS: Final = "streams"


class RunUser(NamedTuple):
    """The user of a run, the user's roles, who is behind the run besides, and the tenant, as in
    `RunRecord`. Nothing has a default: a caller that is left out could approve what its own run
    asks for, and a run without its tenant would not count for it."""

    user_id: str
    roles: Sequence[str]
    started_by: Sequence[str]
    tenant: str

    @property
    def tenant_user(self) -> TenantUser:
        return TenantUser(self.tenant, self.user_id)


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of one request. `expires_at` is in Unix seconds; None means that the credential
    does not expire."""

    user_id: str
    scopes: frozenset[str]
    kind: Kind
    expires_at: float | None = None
    grant: Grant | None = None  # The limits of a stream token.
    session: str = ""  # A hash of the credential; CSRF tokens are bound to this hash.
    # Given by the issuer of the JWT or by the maker of the service token.
    roles: frozenset[str] = frozenset()
    service: ServiceGrant | None = None  # the limits of a service token
    tenant: str = ""  # empty without one; of a token, that of the token's maker

    @property
    def token_id(self) -> str | None:
        granted = self.grant or self.service
        return granted.token_id if granted is not None else None

    @property
    def tenant_user(self) -> TenantUser:
        return TenantUser(self.tenant, self.user_id)

    def has_scope(self, permission: Permission) -> bool:
        return permission in self.scopes

    def may_see_runs_of(self, owner: str) -> bool:
        owners = self.owners
        return owners is None or owner in owners

    @property
    def owners(self) -> frozenset[str] | None:
        """The users whose runs the caller may see; None for all users.

        A caller may see its own runs. With the scope `act-as` or `administer`, a caller may see all
        runs. A caller with a stream token that names users may see only the runs of these users.
        """
        if self.grant is not None and self.grant.users:
            named = self.grant.users
            return None if EVERYBODY in named else frozenset(named)
        sees_all = self.has_scope("act-as") or self.has_scope("administer")
        return None if sees_all else frozenset({self.user_id})

    def manages(self, owner: str) -> bool:
        """Return whether the caller may see and change what this user has made, such as a rule or a
        token: the user itself may, and everybody with the scope `administer`."""
        return owner == self.user_id or self.has_scope("administer")

    def run_user(self, user_id: str) -> RunUser:
        """Return the user of a run that the caller starts, and who is behind the run besides.

        Behind it are the caller, and the maker of the caller's service token, who knows the token,
        too; nobody if callers are not authenticated. Only the caller's own roles are known. The
        run counts for the caller's tenant, whoever its user is.
        """
        roles = tuple(sorted(self.roles)) if user_id == self.user_id else ()
        if self.kind == "anonymous":
            return RunUser(user_id, roles, (), self.tenant)
        maker = self.service.made_by if self.service is not None else None
        behind = tuple(name for name in (self.user_id, maker) if name not in (None, user_id))
        return RunUser(user_id, roles, behind, self.tenant)


ANONYMOUS: Final = Identity(ANONYMOUS_USER, ANONYMOUS_SCOPES, "anonymous")
NOBODY: Final = Identity(ANONYMOUS_USER, frozenset(), "anonymous")


def identity_of(scope: Mapping[str, Any]) -> Identity:
    """Return the caller of a Request, a WebSocket or an ASGI scope. Raises KeyError if no `Router`
    has authenticated the request."""
    identity: Identity = scope["state"][IDENTITY]
    return identity


async def wait_until_credential_ends(
    scope: Mapping[str, Any], warn: Callable[[float], object] | None = None
) -> None:
    """Wait until the caller's credential has expired or was revoked.

    A stream that the caller has opened ends when this function returns. For `anonymous`, this
    function never returns. `Auth.wait_until_credential_ends` describes `warn`.
    """
    ended: Callable[..., Awaitable[None]] = scope["state"][OVER]
    await ended(warn)


def missing_scope_problem(identity: Identity, scopes: str) -> Problem:
    if identity.kind == "anonymous":
        return Problem(
            403,
            f"this needs the scope {scopes}, which nobody has while callers are not authenticated"
            " (PENSTOCK_AUTH_JWT_SECRET, PENSTOCK_AUTH_JWKS_URL or PENSTOCK_OIDC_ISSUER)",
        )
    return Problem(403, f"this needs the scope {scopes}, which the token does not have")


def require(identity: Identity, permission: Permission) -> None:
    if not identity.has_scope(permission):
        raise missing_scope_problem(identity, permission)


def check_owner(identity: Identity, owner: str, what: str) -> None:
    """Raise Problem 404 if the caller may not see the owner's objects.

    `what` names the object, such as "run 42". The error's text is then "there is no run 42",
    exactly as for an object that does not exist.
    """
    if not identity.may_see_runs_of(owner):
        raise Problem(404, f"there is no {what}")


def check_run(identity: Identity, owner: str, run_id: str, session_id: str) -> None:
    """Raise Problem 404 for a run that the caller may not see. Raises Problem 403 for a stream
    token that is limited to some subjects."""
    check_owner(identity, owner, f"run {run_id}")
    if identity.grant is not None:
        identity.grant.check_run(run_id, session_id)


def acting_user(identity: Identity, wanted: str | None) -> str:
    """Return the user for whom a request is made: the caller, or the `wanted` user for whom the
    caller may act.

    Raises Problem 403 if `wanted` is another user and the caller lacks the scope `act-as`.

    A stream token that names users follows other rules. Raises Problem 403 if the token does not
    name the `wanted` user. If `wanted` is None, the result is the caller if the token names the
    caller, else the only user that the token names. If the token names several users but not the
    caller, raises Problem 422.
    """
    if identity.grant is not None and identity.grant.users:
        return _user_in_grant(identity, identity.grant, wanted)
    if wanted is None or wanted == identity.user_id or identity.has_scope("act-as"):
        return wanted or identity.user_id
    raise Problem(403, "the request names another user; that needs the scope act-as")


def deciding_user(identity: Identity, wanted: str | None) -> str:
    """Return the user for whom the caller decides: the caller, or the `wanted` user. Raises Problem
    403 if the caller may not decide on behalf of the wanted user."""
    if identity.service is None:
        return acting_user(identity, wanted)
    if wanted not in (None, identity.user_id):
        identity.service.check_acts_for(wanted)
    return wanted or identity.user_id


def _user_in_grant(identity: Identity, grant: Grant, wanted: str | None) -> str:
    if wanted is None:
        only = grant.users[0] if len(grant.users) == 1 and EVERYBODY not in grant.users else None
        wanted = identity.user_id if grant.includes_user(identity.user_id) else only
    if wanted is None:
        raise Problem(422, "this token reaches runs of other users: say whose, by user_id")
    if not grant.includes_user(wanted):
        raise Problem(403, "this token does not reach the runs of that user")
    return wanted
