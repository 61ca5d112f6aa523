"""The script of the demo models, and their tools. A keyword in the message selects the answer.

The tools' results are made up: no tool looks up or deletes anything.

This module imports only the standard library. The module runs in the environments of Agno and ADK,
where Penstock's packages are not installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

WORD_PAUSE_S = 0.02
SLOW_PAUSE_S = 0.25


@dataclass(frozen=True)
class Think:
    """A step of the script: the model emits a piece of its reasoning."""

    text: str


@dataclass(frozen=True)
class Say:
    """A step of the script: the model waits for `pause_s` and then emits a piece of the answer."""

    text: str
    pause_s: float = WORD_PAUSE_S


@dataclass(frozen=True)
class Call:
    """A step of the script: the model calls a tool. The next request to the model has the tool's
    result."""

    tool: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fail:
    """A step of the script: the model fails with an error."""

    error: str


Step = Think | Say | Call | Fail

HELP = (
    "Hello! I am a demo agent: my model is a script. Try: analyze system state, weather in Paris, "
    "research quantum computing, delete report.txt (it asks you first), tell a slow story, or "
    "fail on purpose."
)
STORY = (
    "Once upon a time a stream of events left its spring in the hills. Gates opened and closed "
    "on its way, and none of them lost a drop. Whoever came late to the bank still saw all of it "
    "pass, from the first drop to the last. And when it reached the wheel, the wheel turned once."
)


def steps(message: str, results: Sequence[str]) -> Iterator[Step]:
    """Return the steps of the model's next turn. `results` has the results of the tools that were
    called since the user's message."""
    for pattern, scene in _SCENES:
        if match := pattern.search(message):
            return scene(match, results)
    return _say(HELP)


def _say(text: str, pause_s: float = WORD_PAUSE_S) -> Iterator[Step]:
    return (Say(word, pause_s) for word in re.findall(r"\S+\s*", text))


def _diagnose(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    if results:
        yield from _say(
            "Diagnosis completed. The database is healthy, one warning: the connection pool is 85% "
            "full. No critical issue was found."
        )
        return
    yield Think("I should check the database cluster first: ")
    yield Think("it is the most critical component.")
    yield from _say("Analyzing the topology. ")
    yield Call("check_database_status", {"host": "db-cluster-01", "timeout": 30})


def _weather(match: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    city = (match[1] or "Paris").title()
    if results:
        yield from _say(f"It is 21 degrees and clear in {city}.")
        return
    yield from _say("Let me check. ")
    yield Call("get_weather", {"city": city})


def _research(match: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    topic = match[1].strip() or "everything"
    if results:
        yield from _say(
            f"I found two sources on {topic}. Both agree that it deserves more research."
        )
        return
    yield from _say("Starting research... ")
    yield Call("search", {"topic": topic})


def _delete(match: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    path = match[1] or "report.txt"
    if not results:
        yield from _say(f"I will delete {path} if you allow it. ")
        yield Call("delete_file", {"path": path})
    elif "deleted" in results[-1]:
        yield from _say(f"Done: {path} is gone. (Not really: this is a demo.)")
    else:
        yield from _say(f"All right, {path} stays where it is.")


def _lint(match: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    return _answer({"score": 98 if "README" in match.string else 82})


def _scan(match: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    secret = re.search(r"password|secret|token", match.string, re.IGNORECASE)
    findings = [f"line with a {secret[0].lower()}"] if secret else []
    return _answer({"findings": findings})


def _report(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    return _say("Code review finished successfully.")


def _plan(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    yield Think("I should check the database cluster first as it's the most critical component.")
    task = "Check database cluster health and connection pool status"
    teams = [{"name": name, "task": task} for name in ("Payment Gateway", "Warehouse")]
    yield from _answer({"teams": teams})


def _assign(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    worker = {"name": "Database Monitor", "task": "Execute database health check"}
    return _answer({"workers": [worker]})


def _check(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    if results:
        return _say("The database is healthy. One warning: the connection pool is 85% full.")
    return iter([Call("check_database_status", {"host": "db-cluster-01", "timeout": 30})])


def _conclude(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    return _say("Diagnosis completed successfully. Found 2 warnings, 0 critical issues.")


def _answer(value: dict[str, Any]) -> Iterator[Step]:
    return _say(json.dumps(value))


def _fail(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    yield from _say("I was about to answer, ")
    yield Fail("the model is not available (this failure is scripted)")


def _slow(_: re.Match[str], results: Sequence[str]) -> Iterator[Step]:
    return _say(STORY, SLOW_PAUSE_S)


Scene = Callable[[re.Match[str], Sequence[str]], Iterator[Step]]

# The model plays the scene of the first pattern that is found in the message.
_SCENES: list[tuple[re.Pattern[str], Scene]] = [
    (re.compile(pattern, re.IGNORECASE), scene)
    for pattern, scene in [
        # These patterns match the messages of the demo's workflow steps.
        (r"^Lint this change:", _lint),
        (r"^Scan this change:", _scan),
        (r"^Report on the review with score ", _report),
        (r"^Plan the diagnosis:", _plan),
        (r"^Assign workers of ", _assign),
        (r"^Execute database health check", _check),
        (r"^Conclude from the reports", _conclude),
        # These patterns match the requests that a person may try.
        (r"\bdelete\s*(?:the\s+)?(?:file\s+)?([\w./-]*\w)?", _delete),
        (r"\bweather\b(?:\s+in\s+([\w -]*\w))?", _weather),
        (r"\bresearch\b([\w -]*)", _research),
        (r"\b(?:analy[sz]e|diagnose|health|status)\b", _diagnose),
        (r"\b(?:fail|error|crash)\b", _fail),
        (r"\b(?:slow|story)\b", _slow),
    ]
]


def check_database_status(host: str, timeout: int) -> dict[str, Any]:
    """Check a database host; `timeout` is in seconds."""
    return {"status": "healthy", "connections": 45, "latency_ms": 12}


def get_weather(city: str) -> dict[str, Any]:
    """Get the weather of a city."""
    return {"city": city, "temperature_c": 21, "sky": "clear"}


def search(topic: str) -> dict[str, Any]:
    """Search for sources on a topic."""
    return {"topic": topic, "sources": ["An introduction", "A critique of the introduction"]}


def delete_file(path: str) -> dict[str, Any]:
    """Delete a file. Somebody must allow it."""
    return {"deleted": path}


FREE_TOOLS = (check_database_status, get_weather, search)
