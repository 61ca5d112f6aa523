"""Serves the HTTP routes of service tokens.

Only callers with the scope `administer` may use these routes.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.web.answers import DAY_S, MAX_LIFETIME_S, json_answer, time_text
from penstock.web.auth.grants import EVERYBODY
from penstock.web.auth.identity import identity_of
from penstock.web.auth.service_tokens import RIGHTS, ServiceToken, ServiceTokens
from penstock.web.bodies import ignore_body, read_model
from penstock.web.operation import (
    NULLABLE,
    TEXT,
    Answer,
    Json,
    Operation,
    a_list,
    an_object,
    in_path,
    json,
    one_of,
    serves,
)

MAX_BODY_BYTES: Final = 64 * 1024

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, Field(min_length=1, max_length=256)]
Texts = Annotated[list[Text], Field(max_length=100)]


class ServiceTokenRequest(BaseModel):
    """The body of POST /v1/service-tokens. A token has no right that the body does not name."""

    model_config = ConfigDict(extra="forbid")

    name: Name = Field(
        description="Tokens of one name act as one user, `service-token:<name>`, so that a new "
        "token can replace an old one"
    )
    scopes: Annotated[list[Text], Field(min_length=1, max_length=20)]
    roles: Texts = Field([], description="Roles by which a policy of approvals names the token")
    agents: Texts = Field([], description="The token decides only approvals of these agents")
    tools: Texts = Field(
        [], description="The token decides only calls of these tools; `*` stands for any text"
    )
    rules: Texts = Field(
        [], description="The token decides only what these rules of the policy ask"
    )
    on_behalf_of: Texts | Literal["*"] = Field(
        [], description="The users for whom the token may decide; `*` for all"
    )
    lifetime_s: float = Field(90 * DAY_S, ge=1, le=MAX_LIFETIME_S)


_operation = partial(Operation, tag="credentials", scopes=("administer",))
_TOKEN: Final[Json] = an_object(
    id=TEXT,
    name=TEXT,
    user_id=TEXT,
    tenant=TEXT,
    scopes=a_list(one_of(sorted(RIGHTS))),
    created_at=TEXT,
    created_by=TEXT,
    expires_at=TEXT,
)
_TOKEN["properties"] |= {
    **{name: a_list(TEXT) for name in ("roles", "agents", "tools", "rules")},
    "on_behalf_of": {"oneOf": [a_list(TEXT), {"const": "*"}]},
    "last_used_at": {**NULLABLE, "description": "To a minute; null before the first use"},
}


class ServiceTokenRoutes:
    """The handlers of service tokens."""

    def __init__(self, tokens: ServiceTokens) -> None:
        self._tokens = tokens

    @serves(
        _operation(
            method="POST",
            path="/v1/service-tokens",
            summary="Make a service token; the answer is the only one that contains it",
            answers={201: json("The token", {"allOf": [_TOKEN, an_object(token=TEXT)]})},
            body=ServiceTokenRequest,
            example={"name": "n8n", "scopes": ["decide"], "tools": ["get_*"]},
            refusals=(409,),
        )
    )
    async def create(self, request: Request) -> Response:
        body = await read_model(request, ServiceTokenRequest, MAX_BODY_BYTES)
        rights = body.model_dump(exclude={"name", "lifetime_s"})
        if isinstance(body.on_behalf_of, str):
            rights["on_behalf_of"] = [EVERYBODY]
        owner = identity_of(request)
        secret, token = await self._tokens.issue(owner, body.name, body.lifetime_s, **rights)
        return json_answer({"token": secret, **_shown(token)}, 201)

    @serves(
        _operation(
            method="GET",
            path="/v1/service-tokens",
            summary="All service tokens, the oldest first",
            answers={200: json("The tokens", an_object(tokens=a_list(_TOKEN)))},
        )
    )
    async def index(self, request: Request) -> Response:
        return json_answer({"tokens": [_shown(token) for token in await self._tokens.listed()]})

    @serves(
        _operation(
            method="DELETE",
            path="/v1/service-tokens/{service_token_id}",
            summary="Revoke a service token",
            answers={204: Answer("Every process refuses the token from now on")},
            parameters=(in_path("service_token_id", "The token's id, which is not the token"),),
            refusals=(404,),
        )
    )
    async def revoke(self, request: Request) -> Response:
        await ignore_body(request)
        await self._tokens.revoke(request.path_params["service_token_id"])
        return Response(status_code=204)


def _shown(token: ServiceToken) -> dict[str, Any]:
    times = {
        name: time_text(getattr(token, name))
        for name in ("created_at", "expires_at", "last_used_at")
    }
    acts_for = EVERYBODY if EVERYBODY in token.on_behalf_of else token.on_behalf_of
    return asdict(token) | times | {"user_id": token.user_id, "on_behalf_of": acts_for}
