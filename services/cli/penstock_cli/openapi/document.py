"""The OpenAPI document of all services: their own operations, composed."""

from __future__ import annotations

from typing import Final, cast

from penstock.contract import openapi
from penstock.web.auth import routes as credentials
from penstock.web.auth.scopes import Permission
from penstock.web.operation import Answer, Json, Method, Operation, Parameter, in_path
from penstock.web.problems import DETAIL, PROBLEM
from penstock_approvals.service import ApprovalsService
from penstock_cli.openapi.operation import Operation as LegacyOperation
from penstock_cli.openapi.parameters import IDS
from penstock_cli.openapi.surfaces import LEGACY
from penstock_edge.service import EdgeService


def _converted(old: LegacyOperation) -> Operation:
    names = [part[1:-1] for part in old.path.split("/") if part.startswith("{")]
    given = (
        Parameter(each.name, each.description, each.schema, each.place) for each in old.parameters
    )
    return Operation(
        method=cast(Method, old.method),
        path=old.path,
        summary=old.summary,
        tag=old.tag,
        answers={s: Answer(each.description, each.content) for s, each in old.answers.items()},
        scopes=cast(tuple[Permission, ...], old.needs or ()),
        public=old.needs is None,
        errors=DETAIL if old.shape == "detail" else PROBLEM,
        refusals=old.refusals,
        parameters=(*(in_path(name, IDS[name]) for name in names), *given),
        body=old.body,
        body_types=old.body_types,
        body_required=old.body_required,
    )


OPERATIONS: Final = (
    *EdgeService.operations,
    *map(_converted, LEGACY),
    *ApprovalsService.operations,
    *credentials.OPERATIONS,
)


def document() -> Json:
    """The whole document, as JSON."""
    return openapi.document(OPERATIONS)
