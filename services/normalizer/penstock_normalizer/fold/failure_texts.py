"""Removes credentials and internal addresses from the texts of failures. Pure.

The fields that this module lists contain an error text of a server, a library, a tool or this
project. An error text may contain a token or an internal address. Texts of models and people are
not changed, and neither are the results of tools that succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.dialects.base import JsonObject
from penstock.redaction import redacted_value

_TEXT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "lifecycle.failed": ("error", "error_type", "detail"),
    "lifecycle.retrying": ("reason",),
    "llm.message_completed": ("error",),
    "llm.tool_result": ("error",),
    "dispatch.finished": ("error",),
    "workflow.step_failed": ("error",),
    "workflow.failed": ("error",),
    "automation.failed": ("error",),
    "system.warning": ("message", "detail"),
    "system.error": ("message", "detail"),
}


def redacted(event_type: str, data: JsonObject, hosts: Sequence[str]) -> JsonObject:
    """Return the event's data, redacted for clients; the same object if nothing was redacted.

    `hosts` are the host names of the run's agent server, which are redacted even if they look
    public.
    """
    fields = _TEXT_FIELDS.get(event_type)
    if fields is None:
        return data
    if event_type == "llm.tool_result" and data.get("outcome") == "error":
        fields = ("error", "result")  # if a tool failed, its result is the error text
    changed = {
        name: clean
        for name in fields
        if data.get(name) is not None and (clean := redacted_value(data[name], hosts)) != data[name]
    }
    return {**data, **changed} if changed else data
