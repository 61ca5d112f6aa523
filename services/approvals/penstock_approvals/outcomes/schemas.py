"""Checks a value against a JSON Schema that an agent server sent. Pure.

If a value cannot be judged here, the value is accepted, because the agent server checks the value
again.
"""

from __future__ import annotations

from typing import Any

from penstock.json_schema import (
    LOOP_STEPS,
    TooMuchWork,
    UnknownReference,
    misfits,
    schema_mistakes,
    shown_path,
)


def misfit(schema: dict[str, Any], value: Any) -> str | None:
    """Return where and why the value does not fit the schema, such as `value.days: is missing`.

    Return None if the value fits, if the schema has mistakes or keywords that are not supported, or
    if the check would take longer than an event loop may wait.
    """
    if schema_mistakes(schema, is_foreign=True):
        return None
    try:
        found = misfits(schema, value, LOOP_STEPS)
    except (TooMuchWork, UnknownReference, RecursionError):
        return None
    return f"{shown_path(found[0].path, 'value')}: {found[0].reason}" if found else None
