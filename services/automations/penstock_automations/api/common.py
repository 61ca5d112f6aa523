"""Helpers of the routes of automations: access to rules, bodies, and responses."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from penstock.web.auth import identity_of
from penstock.web.bodies import read_body, require_json
from penstock.web.operation import NULLABLE, Json, Operation, a_list, an_object, in_path
from penstock.web.problems import Problem, invalid
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import RuleStore

B = TypeVar("B", bound=BaseModel)

MAX_BODY_BYTES: Final = 64 * 1024
MAX_PAGE: Final = 1000
RULE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

operation = partial(Operation, tag="automations", scopes=("automate",))
RULE_ID: Final = in_path("rule_id", "The rule's id")


async def found_rule(request: Request, store: RuleStore) -> CompiledRule:
    """Return the rule that the path names. Raises Problem 404, also for another user's rule."""
    rule_id = request.path_params["rule_id"]
    # A client can send any id, also one with characters that the bus does not allow in a key.
    rule = await store.get(rule_id) if RULE_NAME.fullmatch(rule_id) else None
    if rule is None or not identity_of(request).manages(rule.record.owner.user_id):
        raise Problem(404, f"there is no automation {rule_id}")
    return rule


def a_page(name: str, items: Json) -> Json:
    return an_object(**{name: a_list(items), "next": NULLABLE})


async def optional_body(request: Request, model: type[B]) -> B:
    """Return the body as this model. Without a body, return the model's defaults."""
    content = await read_body(request, MAX_BODY_BYTES)
    if not content:
        return model()
    require_json(request)
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise invalid(error) from error


def time_of(text: str, field: str) -> datetime:
    """Return the time in a field. Raises Problem 422 if the text is no time with a time zone."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError("no zone")
        return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        reason = "must be a time with a zone, such as 2026-01-31T12:00:00Z"
        errors = [{"field": field, "message": reason}]
        raise Problem(422, f"{field}: {reason}", errors=errors) from error
