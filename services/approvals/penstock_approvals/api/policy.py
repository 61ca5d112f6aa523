"""Serve the HTTP routes of the policy: show the current policy, and replace it."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import BusError, Retry
from penstock.web.answers import json_answer
from penstock.web.auth import identity_of
from penstock.web.bodies import read_json
from penstock.web.operation import Operation, json, serves
from penstock.web.problems import Problem
from penstock_approvals.policy.document import InvalidPolicy
from penstock_approvals.policy.model import Document, Source
from penstock_approvals.store.policies import Policies, VersionConflict

_operation = partial(Operation, tag="approvals")
_EXAMPLE: dict[str, Any] = {
    "version": 1,
    "rules": [{"id": "read-only", "match": {"tool": "get_*"}, "outcome": "approve"}],
}


class CurrentPolicy(BaseModel):
    """The current policy."""

    version: int = Field(description="The policy's version; 0 if none was made")
    source: Source = Field(description="`kv` (stored over HTTP), `file` or `builtin`")
    digest: str = Field(description="SHA-256 of the policy, as in the records of approvals")
    policy: dict[str, Any] = Field(description="The policy itself")
    by: str | None = Field(None, description="Who has stored the policy")
    at: str | None = Field(None, description="When the policy was stored, RFC 3339")
    refused: dict[Source, str] = Field(
        {}, description="Why a newer policy does not hold, by its source"
    )


class PolicyApi:
    """The handlers of the routes."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    @serves(
        _operation(
            method="GET",
            path="/v1/policy",
            summary="The policy of approvals that holds",
            answers={200: json("The policy", CurrentPolicy)},
            scopes=("administer",),
        )
    )
    async def show(self, request: Request) -> Response:
        return self._answer()

    @serves(
        _operation(
            method="PUT",
            path="/v1/policy",
            summary="Replace the policy of approvals by one with a higher version",
            answers={200: json("The policy that holds now", CurrentPolicy)},
            scopes=("administer",),
            body=Document,
            example=_EXAMPLE,
            refusals=(409,),
        )
    )
    async def apply(self, request: Request) -> Response:
        value = await read_json(request)
        try:
            await self._policies.apply(value, identity_of(request).user_id)
        except InvalidPolicy as error:
            raise Problem(422, str(error)) from error
        except VersionConflict as error:
            raise Problem(409, str(error)) from error
        except BusError as error:
            raise Problem(503, f"the bus does not answer: {error}; show the policy") from error
        return self._answer()

    def _answer(self) -> Response:
        policies = self._policies
        try:
            current = policies.current
        except Retry:
            raise Problem(503, f"no policy holds: {policies.refused.get('kv')}") from None
        stored = policies.stored if current.source == "kv" else None
        document = current.document.model_dump(mode="json", by_alias=True, exclude_unset=True)
        shown = CurrentPolicy(
            version=current.version,
            source=current.source,
            digest=current.digest,
            policy=document,
            by=stored.by if stored is not None else None,
            at=stored.at if stored is not None else None,
            refused=policies.refused,
        )
        return json_answer(shown.model_dump(mode="json", exclude_none=True))
