"""Serves the HTTP routes for sign-in, the credential's cookie, its CSRF token, and stream
tokens."""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from penstock.web.answers import (
    DAY_S,
    MAX_LIFETIME_S,
    cursor_of,
    cursor_parts,
    json_answer,
    time_text,
)
from penstock.web.auth import cookies
from penstock.web.auth.auth import Auth
from penstock.web.auth.credentials import cookie_of, find
from penstock.web.auth.grants import EVERYBODY
from penstock.web.auth.identity import Identity, identity_of
from penstock.web.auth.sign_in import CALLBACK, FLOW_S, SignInRefused
from penstock.web.auth.stream_tokens import FIRST, StreamToken, StreamTokens
from penstock.web.bodies import ignore_body, read_model, read_query
from penstock.web.operation import (
    NULLABLE,
    OBJECT,
    TEXT,
    Answer,
    Json,
    Operation,
    Parameter,
    Route,
    a_list,
    an_object,
    in_path,
    in_query,
    json,
    operations_of,
    routes_of,
    serves,
)
from penstock.web.problems import Problem
from penstock.web.service_token_routes import ServiceTokenRoutes

if TYPE_CHECKING:
    from penstock.web.auth.oidc import SignIn

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024

Id = Annotated[str, Field(min_length=1, max_length=512)]
Subject = Annotated[str, Field(pattern=r"^(\*|[a-z_]{1,64})\.(\*|[a-z_]{1,64})$")]


class TokenRequest(BaseModel):
    """The body of POST /v1/tokens.

    At least one limit is required. `subjects: ["*.*"]` means all events.
    """

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


class TokenQuery(BaseModel):
    """Which tokens to list. A user cannot have more than the default of `limit`."""

    limit: int = Field(100, ge=1, le=1000, description="How many tokens a page has at most")
    after: str | None = Field(None, description="`next` of the page before")


class TokenChange(BaseModel):
    """The body of PATCH /v1/tokens/{id}. It says how long the token is valid from now on."""

    model_config = ConfigDict(extra="forbid")

    lifetime_s: float = Field(ge=1, le=MAX_LIFETIME_S)


_operation = partial(Operation, tag="credentials")
BEGIN: Final = "/v1/oidc/login"
_DONE: Final = Answer("It is done")
_KNOWN: Final = an_object(user_id=TEXT, scopes=a_list(TEXT), expires_at=NULLABLE)
_TO_PROVIDER: Final = "To the provider"
_TOKEN: Final[Json] = an_object(
    id=TEXT, user_id=TEXT, tenant=TEXT, created_at=TEXT, expires_at=TEXT
)
_TOKEN["properties"] |= {
    "users": {
        "description": "The users whose runs it reaches, or `*` for everybody's",
        "oneOf": [a_list(TEXT), {"const": "*"}],
    },
    "last_used_at": {
        **NULLABLE,
        "description": "When it last opened or held a stream, to a minute; null before that",
    },
}
_TOKEN_ID: Final = in_path("token_id", "The stream token's id, which is not the token")


class Sessions:
    """The handlers for login, logout and CSRF tokens."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    @serves(
        _operation(
            method="GET",
            path="/v1/login",
            summary="How callers sign in",
            description="`oidc` is null unless people sign in at an OpenID Connect provider. Then "
            "it has the `issuer`; `begin`, the path that leads a browser there; and `end`, the "
            "URL at which the browser signs out there, if the provider has one.",
            answers={200: json("How", an_object(oidc=OBJECT | {"type": ["object", "null"]}))},
            scopes=(),
            public=True,
        )
    )
    async def ways(self, request: Request) -> Response:
        sign_in = self._auth.sign_in
        if sign_in is None:
            return json_answer({"oidc": None})
        issuer, end = self._auth.config.oidc_issuer, await sign_in.end_session_url()
        return json_answer({"oidc": {"issuer": issuer, "begin": BEGIN, "end": end}})

    @serves(
        _operation(
            method="GET",
            path="/v1/me",
            summary="Who the caller is",
            description="`credential` says how the caller is known: `bearer`, `cookie`, `service` "
            "(a token of a machine) or `anonymous`.",
            answers={
                200: json(
                    "The caller",
                    {
                        "allOf": [
                            _KNOWN,
                            an_object(credential=TEXT, roles=a_list(TEXT), tenant=NULLABLE),
                        ]
                    },
                )
            },
            scopes=(),
        )
    )
    async def me(self, request: Request) -> Response:
        identity = identity_of(request)
        roles, tenant = sorted(identity.roles), identity.tenant or None
        more = {"credential": identity.kind, "roles": roles, "tenant": tenant}
        return json_answer(_described(identity) | more)

    @serves(
        _operation(
            method="GET",
            path=BEGIN,
            summary="Sign in at the OpenID Connect provider",
            description="For browsers, which come back with the cookie. A browser that comes back "
            "without one has `sign_in` in the address: `denied` (the provider has refused), "
            "`not_begun` (the answer is to no sign-in of this browser, or came after 10 minutes), "
            "`not_accepted`, `unavailable` or `too_large` (the ID token is longer than a cookie).",
            answers={302: Answer(_TO_PROVIDER), 303: Answer("Back, since it cannot be reached")},
            scopes=(),
            public=True,
            parameters=(
                Parameter("next", "The path of this server to which the browser comes back"),
            ),
            refusals=(404,),
        )
    )
    async def begin(self, request: Request) -> Response:
        try:
            url, sealed = await self._sign_in.begin(request.query_params.get("next", "/"))
        except SignInRefused as refused:
            return self._refused(refused)
        response = _redirect(302, url)
        cookies.set_sign_in(response, self._auth.config, sealed, FLOW_S)
        return response

    @serves(
        _operation(
            method="GET",
            path=CALLBACK,
            summary="Where the OpenID Connect provider sends the browser back to",
            answers={303: Answer("To the page from which the sign-in began")},
            scopes=(),
            public=True,
            parameters=(
                Parameter("state", "The state of the sign-in"),
                Parameter("code", "The code, which is good for one ID token"),
                Parameter("error", "The reason of a refusal"),
                Parameter("iss", "The issuer"),
            ),
            refusals=(404,),
        )
    )
    async def callback(self, request: Request) -> Response:
        config, sign_in = self._auth.config, self._sign_in
        sealed = cookie_of(request.scope, cookies.sign_in_cookie(config))
        try:
            token, expires_at, place = await sign_in.finish(sealed, request.query_params)
        except SignInRefused as refused:
            return self._refused(refused)
        response = _redirect(303, place)
        cookies.clear_sign_in(response, config)
        cookies.set_credential(response, config, token, expires_at)
        return response

    @property
    def _sign_in(self) -> SignIn:
        if self._auth.sign_in is None:
            raise Problem(
                404,
                "there is no provider at which people sign in: set PENSTOCK_OIDC_ISSUER and "
                "PENSTOCK_PUBLIC_URL",
            )
        return self._auth.sign_in

    def _refused(self, refused: SignInRefused) -> Response:
        log.warning("a sign-in has failed (%s): %s", refused.reason, refused)
        place = refused.place
        response = _redirect(303, f"{place}{'&' if '?' in place else '?'}sign_in={refused.reason}")
        if refused.reason != "not_begun":  # a page of strangers must not end a sign-in
            cookies.clear_sign_in(response, self._auth.config)
        return response

    @serves(
        _operation(
            method="POST",
            path="/v1/login",
            summary="Exchange the bearer token for the cookie",
            answers={200: json("Who the caller is", _KNOWN)},
            scopes=(),
        )
    )
    async def login(self, request: Request) -> Response:
        await ignore_body(request)
        identity, config = identity_of(request), self._auth.config
        credential = find(request.scope, "", stream_token=False)
        if identity.kind != "bearer" or credential is None or identity.expires_at is None:
            raise Problem(400, "send the token that becomes the cookie as Authorization: Bearer")
        if not cookies.fits_in_cookie(config, credential.value):
            raise Problem(422, "the token is too long for a cookie; keep sending it as a bearer")
        response = json_answer(_described(identity))
        cookies.set_credential(response, config, credential.value, identity.expires_at)
        return response

    @serves(
        _operation(
            method="POST",
            path="/v1/logout",
            summary="Remove the cookies",
            description="A cookie that no longer holds is removed, too, so nobody is asked.",
            answers={204: _DONE},
            scopes=(),
            public=True,
        )
    )
    async def logout(self, request: Request) -> Response:
        await ignore_body(request)
        response = Response(status_code=204)
        cookies.clear(response, self._auth.config)
        return response

    @serves(
        _operation(
            method="GET",
            path="/v1/csrf",
            summary="A CSRF token for requests that the cookie authenticates",
            answers={200: json("The token", an_object(csrf_token=TEXT, header=TEXT))},
            scopes=(),
        )
    )
    async def csrf(self, request: Request) -> Response:
        identity = identity_of(request)
        token = self._auth.csrf.issue(identity.session)
        response = json_answer({"csrf_token": token, "header": "X-CSRF-Token"})
        cookies.set_csrf(response, self._auth.config, token, identity.expires_at)
        return response


class Tokens:
    """The handlers of stream tokens."""

    def __init__(self, tokens: StreamTokens) -> None:
        self._tokens = tokens

    @serves(
        _operation(
            method="POST",
            path="/v1/tokens",
            summary="Make a stream token; the answer is the only one that contains it",
            answers={201: json("The token", {"allOf": [_TOKEN, an_object(token=TEXT)]})},
            scopes=("read",),
            body=TokenRequest,
            example={"subjects": ["*.*"]},
            refusals=(409,),
        )
    )
    async def create(self, request: Request) -> Response:
        identity = _manager(request)
        body = await read_model(request, TokenRequest, MAX_BODY_BYTES)
        token, known = await self._tokens.issue(
            identity,
            body.name,
            body.lifetime_s,
            subjects=body.subjects,
            runs=body.runs,
            sessions=body.sessions,
            users=[body.users] if isinstance(body.users, str) else body.users or (),
        )
        return json_answer({"token": token, **_shown(known)}, 201)

    @serves(
        _operation(
            method="GET",
            path="/v1/tokens",
            summary="The caller's stream tokens, the oldest first",
            answers={200: json("A page", an_object(tokens=a_list(_TOKEN), next=NULLABLE))},
            scopes=(),
            any_scope=("read", "administer"),
            parameters=in_query(TokenQuery),
            refusals=(409,),
        )
    )
    async def index(self, request: Request) -> Response:
        identity = _manager(request)
        query = read_query(request, TokenQuery)
        after = FIRST
        if query.after is not None:
            [created_at, token_id] = cursor_parts(query.after, float, str)
            after = created_at, token_id
        found = await self._tokens.listed(identity, after, query.limit + 1)
        page = found[: query.limit]
        more = len(found) > query.limit
        following = cursor_of(page[-1].created_at, page[-1].id) if more else None
        return json_answer({"tokens": [_shown(token) for token in page], "next": following})

    @serves(
        _operation(
            method="PATCH",
            path="/v1/tokens/{token_id}",
            summary="Change how long a stream token is valid from now on",
            answers={200: json("The token", _TOKEN)},
            scopes=(),
            any_scope=("read", "administer"),
            parameters=(_TOKEN_ID,),
            body=TokenChange,
            example={"lifetime_s": 60},
            refusals=(404, 409),
        )
    )
    async def change(self, request: Request) -> Response:
        identity = _manager(request)
        body = await read_model(request, TokenChange, MAX_BODY_BYTES)
        token_id = request.path_params["token_id"]
        return json_answer(_shown(await self._tokens.extend(identity, token_id, body.lifetime_s)))

    @serves(
        _operation(
            method="DELETE",
            path="/v1/tokens/{token_id}",
            summary="Revoke a stream token",
            answers={204: _DONE},
            scopes=(),
            any_scope=("read", "administer"),
            parameters=(_TOKEN_ID,),
            refusals=(404, 409),
        )
    )
    async def revoke(self, request: Request) -> Response:
        await ignore_body(request)
        await self._tokens.revoke(_manager(request), request.path_params["token_id"])
        return Response(status_code=204)


OPERATIONS: Final = operations_of(Sessions, Tokens, ServiceTokenRoutes)


def auth_routes(auth: Auth) -> list[Route]:
    """Return the routes of credentials, with the routes of tokens if `auth` has a store."""
    tokens = routes_of(Tokens(auth.tokens)) if auth.tokens is not None else []
    services = routes_of(ServiceTokenRoutes(auth.services)) if auth.services is not None else []
    return [*routes_of(Sessions(auth)), *tokens, *services]


def _redirect(status: int, url: str) -> Response:
    return Response(status_code=status, headers={"location": url, "cache-control": "no-store"})


def _manager(request: Request) -> Identity:
    """Return the caller. Raises Problem 409 for `anonymous`, 403 for a service token.

    `anonymous` and service tokens may not make stream tokens. A token that `anonymous` made would
    stay valid after authentication was configured. A stream token that a service token made would
    stay valid after the service token was revoked.
    """
    identity = identity_of(request)
    if identity.kind == "service":
        raise Problem(403, "a service token has no stream tokens: send it as Authorization: Bearer")
    if identity.kind == "anonymous":
        raise Problem(409, "nobody is asked who they are here, so no token is needed")
    return identity


def _described(identity: Identity) -> dict[str, Any]:
    return {
        "user_id": identity.user_id,
        "scopes": sorted(identity.scopes),
        "expires_at": time_text(identity.expires_at),
    }


def _shown(token: StreamToken) -> dict[str, Any]:
    times = {
        name: time_text(getattr(token, name))
        for name in ("created_at", "expires_at", "last_used_at")
    }
    # If the token has no list of users, the token may follow the runs of its own user. The answer
    # then names this user.
    users = EVERYBODY if EVERYBODY in token.users else token.users or (token.user_id,)
    return asdict(token) | times | {"users": users}
