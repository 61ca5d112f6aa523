"""`/v1/login`, `/v1/logout`, `/v1/csrf` and `/v1/tokens`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.web.auth import cookies
from penstock.web.auth.auth import LOGOUT, Auth
from penstock.web.auth.credentials import find
from penstock.web.auth.grants import EVERYBODY
from penstock.web.auth.identity import Identity, identity_of, require
from penstock.web.auth.stream_tokens import StreamToken, StreamTokens
from penstock.web.bodies import ignore_body, read_model
from penstock.web.problems import Problem

DAY_S: Final = 24 * 3600.0
MAX_LIFETIME_S: Final = 366 * DAY_S
MAX_BODY_BYTES: Final = 64 * 1024
LAST_S: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()

Id = Annotated[str, Field(min_length=1, max_length=512)]
Subject = Annotated[str, Field(pattern=r"^(\*|[a-z_]{1,64})\.(\*|[a-z_]{1,64})$")]


class TokenRequest(BaseModel):
    """The body of POST /v1/tokens. At least one limit; everything is `subjects: ["*.*"]`."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=200)] = ""
    subjects: Annotated[list[Subject], Field(max_length=100)] = []
    runs: Annotated[list[Id], Field(max_length=100)] = []
    sessions: Annotated[list[Id], Field(max_length=100)] = []
    users: Annotated[list[Id], Field(min_length=1, max_length=100)] | Literal["*"] | None = None
    lifetime_s: float = Field(90 * DAY_S, ge=1, le=MAX_LIFETIME_S)

    @model_validator(mode="after")
    def _limited(self) -> TokenRequest:
        if not (self.subjects or self.runs or self.sessions):
            raise ValueError('name subjects, runs or sessions; all of them is subjects ["*.*"]')
        return self


class TokenChange(BaseModel):
    """The body of PATCH /v1/tokens/{id}: how long it holds from now on."""

    model_config = ConfigDict(extra="forbid")

    lifetime_s: float = Field(ge=1, le=MAX_LIFETIME_S)


def auth_routes(auth: Auth) -> list[BaseRoute]:
    """The routes, for behind AuthMiddleware; errors are problem details."""
    return [*_session_routes(auth), *(_token_routes(auth.tokens) if auth.tokens else ())]


def _session_routes(auth: Auth) -> list[BaseRoute]:
    config = auth.config

    async def login(request: Request) -> Response:
        await ignore_body(request)
        identity = identity_of(request)
        credential = find(request.scope, "", ())
        if identity.kind != "bearer" or credential is None or identity.expires_at is None:
            raise Problem(400, "send the token that becomes the cookie as Authorization: Bearer")
        if not cookies.fits(config, credential.value):
            raise Problem(422, "the token is too long for a cookie; keep sending it as a bearer")
        response = _json(_described(identity))
        cookies.set_credential(response, config, credential.value, identity.expires_at)
        return response

    async def logout(request: Request) -> Response:
        await ignore_body(request)
        response = Response(status_code=204)
        cookies.clear(response, config)
        return response

    async def csrf(request: Request) -> Response:
        identity = identity_of(request)
        token = auth.csrf.issue(identity.session)
        response = _json({"csrf_token": token, "header": "X-CSRF-Token"})
        cookies.set_csrf(response, config, token, identity.expires_at)
        return response

    return [
        Route("/v1/login", login, methods=["POST"]),
        Route(LOGOUT, logout, methods=["POST"]),
        Route("/v1/csrf", csrf, methods=["GET"]),
    ]


def _token_routes(tokens: StreamTokens) -> list[BaseRoute]:
    async def create(request: Request) -> Response:
        identity = _manager(request)
        require(identity, "read")  # which the token has: nobody gives what they do not have
        body = await read_model(request, TokenRequest, MAX_BODY_BYTES)
        token, known = await tokens.issue(
            identity,
            body.name,
            body.lifetime_s,
            subjects=body.subjects,
            runs=body.runs,
            sessions=body.sessions,
            users=[body.users] if isinstance(body.users, str) else body.users or (),
        )
        return _json({"token": token, **_shown(known)}, 201)

    async def index(request: Request) -> Response:
        found = await tokens.listed(_manager(request))
        return _json({"tokens": [_shown(token) for token in found]})

    async def change(request: Request) -> Response:
        identity = _manager(request)
        body = await read_model(request, TokenChange, MAX_BODY_BYTES)
        token_id = request.path_params["token_id"]
        return _json(_shown(await tokens.extend(identity, token_id, body.lifetime_s)))

    async def revoke(request: Request) -> Response:
        await ignore_body(request)
        await tokens.revoke(_manager(request), request.path_params["token_id"])
        return Response(status_code=204)

    return [
        Route("/v1/tokens", create, methods=["POST"]),
        Route("/v1/tokens", index, methods=["GET"]),
        Route("/v1/tokens/{token_id}", change, methods=["PATCH"]),
        Route("/v1/tokens/{token_id}", revoke, methods=["DELETE"]),
    ]


def _manager(request: Request) -> Identity:
    """Raises Problem 409 for `anonymous`: its tokens would outlive the time when nobody asked."""
    identity = identity_of(request)
    if identity.kind == "anonymous":
        raise Problem(409, "nobody is asked who they are here, so no token is needed")
    if not identity.may("administer"):
        require(identity, "read")
    return identity


def _described(identity: Identity) -> dict[str, Any]:
    return {
        "user_id": identity.user_id,
        "scopes": sorted(identity.scopes),
        "expires_at": _time(identity.expires_at),
    }


def _shown(token: StreamToken) -> dict[str, Any]:
    times = {
        name: _time(getattr(token, name)) for name in ("created_at", "expires_at", "last_used_at")
    }
    # always in words whose runs it reaches, also where nobody was named
    users = EVERYBODY if EVERYBODY in token.users else token.users or (token.user_id,)
    return asdict(token) | times | {"users": users}


def _time(at_s: float | None) -> str | None:
    """ISO 8601 in UTC; what is beyond the calendar is the calendar's end."""
    if at_s is None:
        return None
    at = datetime.fromtimestamp(min(at_s, LAST_S), UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
