"""Serve the HTTP routes of the policy, the budgets and the redactions: show the current document,
and replace it."""

from __future__ import annotations

from functools import partial
from typing import Any, Generic

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.budgets.document import Budgets
from penstock.budgets.model import BudgetsDocument
from penstock.bus import BusError, Retry
from penstock.documents.reading import MAX_BYTES, InvalidDocument
from penstock.documents.store import Documents, InForceT, Source, VersionConflict
from penstock.redactions.document import Redactions, RedactionsDocument
from penstock.web.answers import json_answer, while_connected
from penstock.web.auth import identity_of
from penstock.web.bodies import read_json, read_model
from penstock.web.operation import OBJECT, Operation, a_list, an_object, json, serves
from penstock.web.problems import Problem
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.policy.document import from_value
from penstock_approvals.policy.model import Document
from penstock_approvals.policy.rulings import Policy

_operation = partial(Operation, tag="approvals")
_EXAMPLE: dict[str, Any] = {
    "version": 1,
    "rules": [{"id": "read-only", "match": {"tool": "get_*"}, "outcome": "approve"}],
}
_NUMBER = {"type": "integer"}
_TRIAL = an_object(tried=_NUMBER, incomplete=_NUMBER, otherwise=a_list(OBJECT))
_BUDGETS_EXAMPLE: dict[str, Any] = {
    "version": 1,
    "budgets": [
        {
            "id": "user-day",
            "per": "user",
            "window": "day",
            "limit": {"cost": "20 EUR"},
            "reserve": "0.50 EUR",
            "at": [{"share": 1.0, "do": "refuse"}],
        }
    ],
}


_REDACTIONS_EXAMPLE: dict[str, Any] = {
    "version": 1,
    "redact": [{"id": "cards", "match": {"agent": "shop-*"}, "kinds": ["card", "iban"]}],
}


class _Current(BaseModel):
    """The current document."""

    version: int = Field(description="The document's version; 0 if none was made")
    source: Source = Field(description="`kv` (stored over HTTP), `file` or `builtin`")
    digest: str = Field(description="SHA-256 of the document, as in the records of approvals")
    by: str | None = Field(None, description="Who has stored it")
    at: str | None = Field(None, description="When it was stored, RFC 3339")
    refused: dict[Source, str] = Field(
        {}, description="Why a newer one does not hold, by its source"
    )


class CurrentPolicy(_Current):
    """The current policy."""

    policy: dict[str, Any] = Field(description="The policy itself")


class TrialBody(BaseModel):
    """A policy, and the number of requests on which it is tried."""

    model_config = ConfigDict(extra="forbid")

    policy: dict[str, Any] = Field(description="The policy, as for `PUT /v1/policy`")
    last: int = Field(100, ge=1, le=1000, description="How many requests, the newest first")


class CurrentBudgets(_Current):
    """The current budgets."""

    budgets: dict[str, Any] = Field(description="The document itself")


class CurrentRedactions(_Current):
    """The current redactions."""

    redactions: dict[str, Any] = Field(description="The document itself")


class _DocumentApi(Generic[InForceT]):
    """Shows and replaces one document, which responses have under `name`."""

    name: str
    shown: type[_Current]

    def __init__(self, documents: Documents[InForceT]) -> None:
        self._documents = documents

    async def _replace(self, request: Request) -> Response:
        value = await read_json(request)
        try:
            await self._documents.apply(value, identity_of(request).user_id)
        except InvalidDocument as error:
            raise Problem(422, str(error)) from error
        except VersionConflict as error:
            raise Problem(409, str(error)) from error
        except BusError as error:
            text = f"the bus does not answer: {error}; show the {self.name}"
            raise Problem(503, text) from error
        return self._answer()

    def _answer(self) -> Response:
        documents = self._documents
        try:
            current = documents.current
        except Retry:
            reason = documents.refused.get("kv")
            raise Problem(503, f"no {self.name} holds: {reason}") from None
        stored = documents.stored if current.source == "kv" else None
        document = current.document.model_dump(mode="json", by_alias=True, exclude_unset=True)
        shown = self.shown.model_validate(
            {
                "version": current.version,
                "source": current.source,
                "digest": current.digest,
                self.name: document,
                "by": stored.by if stored is not None else None,
                "at": stored.at if stored is not None else None,
                "refused": documents.refused,
            }
        )
        return json_answer(shown.model_dump(mode="json", exclude_none=True))


class PolicyApi(_DocumentApi[Policy]):
    """The handlers of the policy's routes."""

    name = "policy"
    shown = CurrentPolicy

    def __init__(self, documents: Documents[Policy], approvals: Approvals) -> None:
        super().__init__(documents)
        self._approvals = approvals

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
        return await self._replace(request)

    @serves(
        _operation(
            method="POST",
            path="/v1/policy/try",
            summary="What a policy would have said of the last requests; it changes nothing",
            description="`otherwise` has the requests that would be decided otherwise, or by "
            "others, with what `was` said and `would_be`. `incomplete` counts those of which the "
            "run (`roles`, `depth`, `run`) or the `protocol` is no longer known.",
            answers={200: json("The comparison", _TRIAL)},
            scopes=("administer",),
            body=TrialBody,
            example={"policy": _EXAMPLE, "last": 100},
        )
    )
    async def try_policy(self, request: Request) -> Response | None:
        body = await read_model(request, TrialBody, MAX_BYTES * 2)
        try:
            policy = from_value(body.policy, "kv")
        except InvalidDocument as error:
            raise Problem(422, f"policy: {error}") from error
        user = identity_of(request).tenant_user
        trying = self._approvals.try_policy(policy, body.last, user)
        found = await while_connected(request.receive, trying)
        return None if found is None else json_answer(found)


class BudgetsApi(_DocumentApi[Budgets]):
    """The handlers of the budgets' routes."""

    name = "budgets"
    shown = CurrentBudgets

    @serves(
        _operation(
            method="GET",
            path="/v1/budgets",
            summary="The budgets that are in force",
            answers={200: json("The budgets", CurrentBudgets)},
            scopes=("administer",),
        )
    )
    async def show_budgets(self, request: Request) -> Response:
        return self._answer()

    @serves(
        _operation(
            method="PUT",
            path="/v1/budgets",
            summary="Replace the budgets by a document with a higher version",
            answers={200: json("The budgets that are in force now", CurrentBudgets)},
            scopes=("administer",),
            body=BudgetsDocument,
            example=_BUDGETS_EXAMPLE,
            refusals=(409,),
        )
    )
    async def apply_budgets(self, request: Request) -> Response:
        return await self._replace(request)


class RedactionsApi(_DocumentApi[Redactions]):
    """The handlers of the redactions' routes."""

    name = "redactions"
    shown = CurrentRedactions

    @serves(
        _operation(
            method="GET",
            path="/v1/redactions",
            summary="What is taken out of the content of new runs",
            answers={200: json("The redactions", CurrentRedactions)},
            scopes=("administer",),
        )
    )
    async def show_redactions(self, request: Request) -> Response:
        return self._answer()

    @serves(
        _operation(
            method="PUT",
            path="/v1/redactions",
            summary="Replace the redactions by a document with a higher version",
            answers={200: json("The redactions that are in force now", CurrentRedactions)},
            scopes=("administer",),
            body=RedactionsDocument,
            example=_REDACTIONS_EXAMPLE,
            refusals=(409,),
        )
    )
    async def apply_redactions(self, request: Request) -> Response:
        return await self._replace(request)
