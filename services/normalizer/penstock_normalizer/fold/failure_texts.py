"""What the events of failures say: without credentials and internal addresses. Pure.

These fields hold the words of somebody who reports a failure: a server, a library, a tool, or this
project. What models and people say, and what tools return when they work, is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.dialects.base import JsonObject
from penstock.redaction import redacted_value

_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
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


def cleaned(type: str, data: JsonObject, hosts: Sequence[str]) -> JsonObject:
    """The event's data as clients may read it; the same object where nothing had to go.

    `hosts`: the names of the run's agent server, which are hidden although they may look public.
    """
    fields = _WORDS.get(type)
    if fields is None:
        return data
    if type == "llm.tool_result" and data.get("outcome") == "error":
        fields = ("error", "result")  # a tool that failed: its result is the error's text
    changed = {
        name: clean
        for name in fields
        if data.get(name) is not None and (clean := redacted_value(data[name], hosts)) != data[name]
    }
    return {**data, **changed} if changed else data
