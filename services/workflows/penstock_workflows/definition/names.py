"""The names and durations that a definition may have. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from penstock.validation import check_url

# The words that CEL reserves, and the names that CEL gives to types. CEL could not read an
# expression that uses a step of such a name.
CEL_WORDS: Final = frozenset(
    [
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import"),
        *("in", "let", "loop", "namespace", "null", "package", "return", "true", "var", "void"),
        *("while", "bool", "bytes", "double", "duration", "dyn", "google", "int", "list", "map"),
        *("null_type", "string", "timestamp", "type", "uint"),
    ]
)
# The variables that Penstock itself gives to expressions.
OWN_VARIABLES: Final = ("input", "now", "result")
# The words that `on_failure` accepts besides the names of steps.
FAILURE_WORDS: Final = ("fail", "continue")

# The longest duration in a definition: 28 days, in seconds. The record of a run is kept for 30 days
# after the run's last lifecycle event (`runs_max_age_s`). A run that waits for longer would lose
# its record, and the API could then neither show nor cancel the run.
MAX_DURATION_S: Final = 28 * 24 * 3600.0
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")


def seconds(text: str) -> float:
    """Return the seconds of a duration such as `500ms`, `5s`, `1h30m` and `2d`.

    Raises:
        ValueError: the text is no duration, or the duration is zero or longer than 28 days.
    """
    if len(text) > 64 or _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text[:64]!r} is no duration: write it as in 500ms, 5s, 1h30m or 2d")
    found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if not 0 < found <= MAX_DURATION_S:
        raise ValueError(f"{text!r} must be longer than zero and at most 28 days")
    return found


def _checked_variable(name: str) -> str:
    if name in CEL_WORDS or name in OWN_VARIABLES:
        raise ValueError(f"the name {name!r} is reserved: choose another name")
    return name


def _checked_step(name: str) -> str:
    if name in FAILURE_WORDS:
        raise ValueError(f"the name {name!r} is reserved: choose another name")
    return _checked_variable(name)


def _checked_duration(text: str) -> str:
    seconds(text)
    return text


def _checked_url(url: str) -> str:
    check_url(url, "secret")
    return url


_VARIABLE: Final = r"^[A-Za-z][A-Za-z0-9_]{0,62}$"
_WORKFLOW: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
_VERSION: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
_ID: Final = r"^[A-Za-z0-9_.-]{1,128}$"
_URL: Final = r"^https?://[^\s]+$"
_EVENT: Final = r"^[a-z_]{1,32}\.[a-z_]{1,64}$"
# Describes, in words for people, what each pattern allows.
PATTERNS: Final = {
    _VARIABLE: "a name has letters, digits and _, begins with a letter, and has at most 63 of them",
    _WORKFLOW: "a name has letters, digits, _ and -, and at most 64 of them",
    _VERSION: "a version has letters, digits, _, - and single dots, as in 1.2",
    _ID: "an id has letters, digits, _, . and -, and at most 128 of them",
    _URL: "a URL begins with https:// or http:// and has no blank",
    _EVENT: "the type of an event is as in lifecycle.completed",
}

# The name of a step or of a loop variable. Expressions use this name for a variable.
VariableName = Annotated[str, Field(pattern=_VARIABLE), AfterValidator(_checked_variable)]
StepName = Annotated[str, Field(pattern=_VARIABLE), AfterValidator(_checked_step)]
# The name of a workflow. It has no dot, because it is one token of the keys in the bucket.
WorkflowName = Annotated[str, Field(pattern=_WORKFLOW)]
Version = Annotated[str, Field(pattern=_VERSION, max_length=32)]
Id = Annotated[str, Field(pattern=_ID)]
# The URL of a webhook. The check refuses secrets in the URL, because everybody with the scope
# `read` sees the definition.
Url = Annotated[str, Field(pattern=_URL, max_length=2000), AfterValidator(_checked_url)]
EventType = Annotated[str, Field(pattern=_EVENT)]
Duration = Annotated[
    str, Field(examples=["500ms", "5s", "1h30m", "2d"]), AfterValidator(_checked_duration)
]
# The text of an expression in CEL.
Expression = Annotated[str, Field(min_length=1, max_length=2000)]
