"""Defines the types and functions that decoders and encoders share. This module does no I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypedDict

import orjson

from penstock.events.catalogue import CATALOGUE
from penstock.sse import Frame

# Any JSON value; mypy does not check it. A recursive type would make mypy slow and would find few
# mistakes.
Json = Any
JsonObject = dict[str, Any]
# A JSON value that mypy checks. If a key of a TypedDict is misspelt, `get` has the type `object`. A
# parameter of the type `JsonValue` does not accept `object`, so mypy reports the misspelt key.
JsonValue = dict[str, Any] | list[Any] | str | int | float | bool | None

# The limits of a decoder for one run: the number of open parts of one kind, the number of items in
# one list, and the number of characters of a name or id. docs/decisions/0032 has the reasons.
MAX_OPEN: Final = 1_000
MAX_ITEMS: Final = 10_000
MAX_NAME_CHARS: Final = 1_024
# Token counts of at least this size are ignored, so that JSON can represent the sum of the counts.
MAX_COUNT: Final = 2**53


class LimitReached(ValueError):
    """A limit of the decoder, which ends the run with the code `limit`."""

    @classmethod
    def check(cls, count: int, limit: int, what: str) -> None:
        if count > limit:
            raise cls(f"the upstream has more than {limit} {what}")


def short(name: str) -> str:
    """Cut a longer name to `MAX_NAME_CHARS` with a digest of the whole, so that two stay
    distinct."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name[: MAX_NAME_CHARS - 17]}~{digest}"


def unconfirmed(data: JsonObject) -> str:
    """Return what a text adds if the agent server may go on with a cancelled run."""
    return "; the agent server did not confirm it" if data.get("confirmed") is False else ""


class Ids:
    """Makes upstream ids that repeat within a run unique: `m1`, `m1#2`, …"""

    def __init__(self, used: Mapping[str, int] | None = None) -> None:
        self.used: dict[str, int] = dict(used or {})

    def unique(self, wanted: str) -> str:
        """Add a number if the id is used already (`m1#2`)."""
        wanted = short(wanted)
        # The code uses a loop, because the agent server decides how long a chain of ids (x, x#2,
        # x#2#2) gets, and a recursion could exceed Python's limit.
        while (times := self.used.get(wanted, 0) + 1) > 1:
            self.used[wanted] = times
            wanted = f"{wanted}#{times}"
        self.used[wanted] = 1
        return wanted

    def make(self, prefix: str) -> str:
        """Return `prefix-1`, `prefix-2`, … for something that has no upstream id."""
        count = self.used.get(prefix, 0) + 1
        self.used[prefix] = count
        return self.unique(f"{prefix}-{count}")

    def snapshot(self) -> JsonObject:
        return dict(self.used)

    def restore(self, state: JsonObject) -> None:
        self.used = dict(state)


AgentKind = Literal["agent", "team", "workflow"]
AgentType = AgentKind | Literal["worker"]


class Source(TypedDict):
    """The agent from which an event comes (executions-sse.md). All four keys are always present."""

    agent_id: str
    agent_type: AgentType  # "worker" for an agent inside the outer run
    agent_name: str
    team_name: str | None


class Subrun(TypedDict, total=False):
    """Names the inner run to which an event belongs."""

    id: str
    parent_id: str
    name: str


@dataclass(slots=True)
class Draft:
    """A canonical event before the normalizer adds its sequence and timestamp; `type` is
    `category.action`, `data` has the fields of that type."""

    type: str
    data: JsonObject
    source: Source | None = None
    subrun: Subrun | None = None
    step_id: str | None = None
    redactions: Sequence[JsonObject] = ()  # as in the event
    # `data` as they came, where redactions have masked them for some callers
    clear: JsonObject | None = None


PauseKind = Literal[
    "confirmation",
    "input",
    "external",
    "credential",
    "feedback",
    "selection",
    "review",
    "long_running",
    "budget",
]


@dataclass(slots=True)
class PauseItem:
    """A question that must be answered. `item_id` is the upstream's id, unique within the pause."""

    item_id: str
    kind: PauseKind
    tool_call_id: str | None = None
    tool: str | None = None
    args: JsonObject | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    options: list[Json] | None = None
    editable: bool = False
    subrun: Subrun | None = None


@dataclass(slots=True)
class Pause:
    """A stop of the run for answers. `resume` has the agent server's data, unchanged, that the
    adapter needs to continue."""

    items: list[PauseItem]
    resume: JsonObject
    source: Source | None = None


@dataclass(slots=True)
class AgentFacts:
    """The settings of an agent that the agent's decoder needs."""

    id: str
    name: str | None = None
    kind: AgentKind = "agent"
    # upstream event names that the decoder leaves out
    drop: frozenset[str] = field(default_factory=frozenset)
    # tools that the client runs (AG-UI)
    client_tools: frozenset[str] = field(default_factory=frozenset)


def cut_off(error: str, status: Literal["failed", "partial_success"] = "failed") -> JsonObject:
    """Return the fields `{status, error}` that mark the message of an `llm.message_completed` as
    incomplete; a complete one has neither. `status` is "failed", or "partial_success" if a client
    can use the incomplete text (agent-runs-sse.md, TEXT_MESSAGE_END)."""
    return {"status": status, "error": error}


class Decoder(Protocol):
    """Decodes the frames of one protocol into drafts, for all legs of one run.

    The same frames give the same drafts, at any time and however the bytes were divided into
    chunks. `feed` never raises an exception: a frame that cannot be read becomes `custom.event` or
    `lifecycle.failed`.
    """

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """Begin a leg: leg 1 starts the run, each later leg continues it after a pause."""
        ...

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """Take the decisions on the pause before this leg, right after `open`; return the results
        of those calls for which the upstream sends none. `items` maps an item id to `{"decision":
        "approve" | "reject", "note": str | None, "value": Any}`."""
        ...

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]: ...

    def end(self) -> Sequence[Draft | Pause]:
        """End a leg whose response ended regularly: return a pause, or a completion, a failure or
        the loss of the upstream; nothing if a frame has already ended or paused the run."""
        ...

    def abort(self) -> Sequence[Draft | Pause]:
        """Close all open parts of a leg that was cut off. The caller then reports the reason."""
        ...

    def snapshot(self) -> JsonObject: ...

    def restore(self, state: JsonObject) -> None: ...


def omitted_types(
    sent: Collection[str], instead: Mapping[str, str], default: str
) -> Mapping[str, str]:
    """Return the canonical types that a dialect does not send, for `ClientDialect.omitted`, with
    what `instead` says; a type without an entry gets `default`, so that a new type of event needs
    no change of a dialect."""
    return {
        event_type: instead.get(event_type, default)
        for event_type in CATALOGUE
        if event_type not in sent
    }


@dataclass(frozen=True, slots=True)
class ClientDialect:
    """Describes one client dialect.

    With `unchanged`, each event becomes one frame, whose data is the stored event and whose name is
    `category.action`: a caller needs no encoder.

    `omitted` has the canonical types without an event in this dialect. Each value says where a
    client sees the content of such an event instead.

    With `stateful`, a frame depends on earlier events of the run: a reader that begins in the
    middle must first feed the encoder all events from the run's start.

    `select_types` takes categories and types of the dialect, of which clients may choose, and
    returns the types that a client wants; it raises ValueError for an unknown one.

    `for_workflows` is the encoder, if not `encoder`, for the run of a Penstock workflow together
    with the runs of its steps.

    `headers` are further headers of a stream's response, with lower-case names, which replace
    others of the same name.

    `last` is the data of a frame that follows those of the run's terminal event, for example
    `[DONE]`. It need not be JSON, so pages leave it out.

    `error` makes the frame that ends a stream before its run has ended, from a code and a message.
    A dialect whose clients cannot continue with a cursor needs it: without the frame, such a client
    would conclude that the run has succeeded. `last` follows it, too.
    """

    encoder: Callable[[], Encoder]
    omitted: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    unchanged: bool = False
    select_types: Callable[[Collection[str], Collection[str]], frozenset[str]] | None = None
    for_workflows: Callable[[], Encoder] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    last: bytes | None = None
    error: Callable[[str, str], Frame] | None = None

    @property
    def has_warnings(self) -> bool:
        """True if a `system.warning` of Penstock itself has an event in this dialect."""
        return "system.warning" not in self.omitted


class Encoder(Protocol):
    """Encodes canonical events into the frames of one client protocol, for one run.

    An encoder is deterministic: when a client reconnects, the caller feeds a new encoder from the
    run's start, and skips the frames that the client already has. Before the frame of an error or
    of the run's end, an encoder closes all open parts.
    """

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """Return none if the event, an envelope, is omitted."""
        ...


def append_text(pieces: list[str], piece: str) -> None:
    """Append a piece, joined with earlier pieces that are not longer: a list of single tokens takes
    twelve times the memory of its text. Each piece is then longer than the next, so the list is
    short, and each character is copied about a dozen times at most."""
    at, size = len(pieces), len(piece)
    while at and len(pieces[at - 1]) <= size:
        at -= 1
        size += len(pieces[at])
    pieces[at:] = ["".join((*pieces[at:], piece))]


def type_of(event: JsonObject) -> str:
    name = event["event"]
    return f"{name['category']}.{name['action']}"


def has_failed(data: JsonObject) -> bool:
    """Return whether the call of an `llm.tool_result` failed or was refused."""
    return data.get("outcome", "ok") not in ("ok", "partial")


def tool_result(
    tool: str, call_id: str, result: Json, outcome: str, error: str | None = None
) -> JsonObject:
    data: JsonObject = {
        "tool": tool,
        "result": result,
        "tool_call_id": call_id,
        "outcome": outcome,
    }
    return data if error is None else {**data, "error": error}


def frame(body: JsonObject, event: str | None = None) -> Frame:
    try:
        return Frame(orjson.dumps(body), event)
    except orjson.JSONEncodeError:
        # orjson writes at most 254 levels. A canonical event may have 254 levels, and some dialects
        # wrap further levels around a part of the event. Such a body is written with the slower
        # module `json`, which has no limit of 254 levels.
        return Frame(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), event)


def epoch_s(event: JsonObject) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()
