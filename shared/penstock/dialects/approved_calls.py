"""Compares the tool call that runs with the call that was approved (decision 0035).

Frameworks change a call between its approval and its run. Frameworks reorder keys, write `1.0` for
`1`, and drop or add arguments that are null. The comparison ignores these changes.
"""

from __future__ import annotations

import hashlib

import orjson

from penstock.dialects.base import Json, JsonObject

NOT_APPROVED = "not_what_was_approved"
# The greatest size of the arguments in `detail`, in bytes of JSON. For larger arguments, `detail`
# has only a digest.
MAX_SHOWN_BYTES = 16_384
_MAX_READABLE = 300  # The greatest number of characters of a call in `message`.
# `_encoded` wraps this many levels around the arguments, to check that orjson can write the
# arguments inside of an event. An event itself wraps fewer levels around the arguments.
_LEVELS_AROUND = 8
_UNSHOWN = b"(nested too deeply to be shown)"


def have_same_args(approved: JsonObject, ran: JsonObject) -> bool:
    """Return whether both calls have the same arguments, apart from null arguments."""
    return _same(_given(approved), _given(ran))


def warning(
    call_id: str, approved: tuple[str, JsonObject], ran: tuple[str, JsonObject]
) -> JsonObject:
    """Return the data of `system.warning` for a call that differs from the approved call.

    `approved` and `ran` are pairs of a tool's name and the arguments.
    """
    return {
        "message": f"the agent server ran {_readable(*ran)} as the call {call_id}, and what was "
        f"approved is {_readable(*approved)}",
        "code": NOT_APPROVED,
        "detail": {
            "tool_call_id": call_id,
            "approved": _shown(*approved),
            "ran": _shown(*ran),
        },
    }


def _given(args: JsonObject) -> JsonObject:
    return {name: value for name, value in args.items() if value is not None}


def _same(one: Json, other: Json) -> bool:
    """Return whether two JSON values are equal.

    The agent server decides how deeply the values are nested, and a recursion could exceed Python's
    limit.
    """
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs += [(value, right[name]) for name, value in left.items()]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:
            return False  # in Python, True equals 1
    return True


def _readable(tool: str, args: JsonObject) -> str:
    readable = f"{tool} {(_encoded(args) or _UNSHOWN).decode()}"
    return readable if len(readable) <= _MAX_READABLE else f"{readable[: _MAX_READABLE - 1]}…"


def _shown(tool: str, args: JsonObject) -> JsonObject:
    encoded = _encoded(args)
    if encoded is None:
        return {"tool": tool}
    digest = hashlib.sha256(encoded).hexdigest()
    shown: JsonObject = {"tool": tool, "args_digest": f"sha256:{digest}"}
    if len(encoded) <= MAX_SHOWN_BYTES:
        shown["args"] = args
    return shown


def _encoded(args: JsonObject) -> bytes | None:
    wrapped: Json = args
    for _ in range(_LEVELS_AROUND):
        wrapped = [wrapped]
    try:
        return orjson.dumps(wrapped, option=orjson.OPT_SORT_KEYS)[_LEVELS_AROUND:-_LEVELS_AROUND]
    except TypeError:
        return None
