"""The types that every decoder and encoder uses. Pure: no I/O, usable without a request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypedDict

from penstock.sse import Frame

Json = Any  # any JSON value; a recursive alias would make mypy slow and would find little
JsonObject = dict[str, Any]
# A JSON value where mypy must refuse `object`, which `get` of a TypedDict gives for a misspelt key.
JsonValue = dict[str, Any] | list[Any] | str | int | float | bool | None

# Limits on what a decoder keeps and searches through for one run; docs/decisions/0032 says why.
MAX_OPEN: Final = 1_000
MAX_ITEMS: Final = 10_000
MAX_NAME_CHARS: Final = 1_024
MAX_COUNT: Final = 2**53  # tokens; JSON must still be able to hold their sum


class LimitReached(ValueError):
    """An upstream exceeds what a decoder keeps.

    The decoder catches it and ends the run: code `limit`.
    """

    @classmethod
    def check(cls, count: int, limit: int, what: str) -> None:
        """Compares a count with its limit.

        Raises:
            LimitReached: The count is higher than the limit.
        """
        if count > limit:
            raise cls(f"the upstream has more than {limit} {what}")


def short(name: str) -> str:
    """A name or id that later events repeat.

    A long one is cut and ends in a digest, so it stays distinct.
    """
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name[: MAX_NAME_CHARS - 17]}~{digest}"


class Ids:
    """Makes upstream ids that repeat within a run unique: `m1`, `m1#2`, …"""

    def __init__(self, used: Mapping[str, int] | None = None) -> None:
        self.used: dict[str, int] = dict(used or {})

    def unique(self, wanted: str) -> str:
        """The id itself the first time, else with a number. A long id is cut first."""
        wanted = short(wanted)
        # A loop and no recursion: the upstream decides how long a chain of x, x#2, x#2#2 gets.
        while (times := self.used.get(wanted, 0) + 1) > 1:
            self.used[wanted] = times
            wanted = f"{wanted}#{times}"
        self.used[wanted] = 1
        return wanted

    def make(self, prefix: str) -> str:
        """A new id that the upstream did not choose: `prefix-1`, `prefix-2`, …"""
        count = self.used.get(prefix, 0) + 1
        self.used[prefix] = count
        return self.unique(f"{prefix}-{count}")

    def snapshot(self) -> JsonObject:
        """The state as JSON, for `restore`."""
        return dict(self.used)

    def restore(self, state: JsonObject) -> None:
        """Continues from a snapshot."""
        self.used = dict(state)


AgentKind = Literal["agent", "team", "workflow"]
AgentType = AgentKind | Literal["worker"]


class Source(TypedDict):
    """The agent that an event comes from (executions-sse.md). All four keys are always present."""

    agent_id: str
    agent_type: AgentType  # "worker" in a run inside the outer one
    agent_name: str
    team_name: str | None


class Subrun(TypedDict, total=False):
    """The inner run that an event belongs to."""

    id: str
    parent_id: str
    name: str


@dataclass(slots=True)
class Draft:
    """A canonical event without sequence and timestamp, which the normalizer adds.

    `type` is `category.action`; `data` has the fields of that type in `penstock.events`.
    """

    type: str
    data: JsonObject
    source: Source | None = None
    subrun: Subrun | None = None
    step_id: str | None = None


PauseKind = Literal[
    "confirmation",
    "input",
    "external",
    "credential",
    "feedback",
    "selection",
    "review",
    "long_running",
]


@dataclass(slots=True)
class PauseItem:
    """One question that a person or a client must answer before the upstream continues.

    `item_id` is the upstream's id of the question, unique within the pause.
    """

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
    """The upstream waits for answers.

    `resume` holds what its adapter needs to continue, as received.
    """

    items: list[PauseItem]
    resume: JsonObject
    source: Source | None = None


@dataclass(slots=True)
class AgentFacts:
    """What a decoder knows of the agent besides its frames: values of the configuration."""

    id: str
    name: str | None = None
    kind: AgentKind = "agent"
    # upstream event names that the decoder leaves out
    drop: frozenset[str] = field(default_factory=frozenset)
    # tools that the client runs (AG-UI)
    client_tools: frozenset[str] = field(default_factory=frozenset)


def cut_off(error: str, status: Literal["failed", "partial_success"] = "failed") -> JsonObject:
    """The fields of `llm.message_completed` for a message that is not complete.

    `status` is "failed", or "partial_success" where the text is usable as it is (agent-runs-sse.md,
    TEXT_MESSAGE_END). A complete message has neither field. Shape: `{status, error}`.
    """
    return {"status": status, "error": error}


class Decoder(Protocol):
    """Decodes the frames of one protocol into drafts.

    One instance serves one run, over all its legs. A decoder is deterministic: the same frames give
    the same drafts, in any chunking and at any time. It never raises on a frame: a frame that it
    cannot read becomes `custom.event` or `lifecycle.failed`.
    """

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """The response of a leg begins.

        Leg 1 is the start of the run; each continue is one more leg.
        """
        ...

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """Takes the decisions on the pause before this leg; called right after `open(leg > 1)`.

        `items`: item id to `{"decision": "approve" | "reject", "note": str | None, "value": Any}`.
        Returns the tool results that the upstream will not report itself.
        """
        ...

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """The drafts of one complete frame."""
        ...

    def end(self) -> Sequence[Draft | Pause]:
        """The response ended cleanly: the drafts of a completion, a pause or a lost upstream."""
        ...

    def abort(self) -> Sequence[Draft | Pause]:
        """The response was cut: the drafts that close open parts.

        The caller reports the reason afterwards.
        """
        ...

    def snapshot(self) -> JsonObject:
        """The state between two legs as JSON, for `restore`."""
        ...

    def restore(self, state: JsonObject) -> None:
        """Continues from a snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class ClientDialect:
    """One client dialect: its encoder, and what a reader must know before the first event.

    `omitted`: the canonical types without an event in this dialect, each with the place where a
    client sees their content instead.
    `stateful`: a frame depends on earlier events of the run. A reader that joins in the middle must
    first feed the encoder from the run's start.
    `select_types`: takes categories and types of the dialect and returns the types that a client
    wants. It raises ValueError for an unknown one. None where clients cannot choose.
    """

    encoder: Callable[[], Encoder]
    omitted: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    select_types: Callable[[Collection[str], Collection[str]], frozenset[str]] | None = None

    @property
    def has_warnings(self) -> bool:
        """Whether a warning of Penstock's own has an event in this dialect."""
        return "system.warning" not in self.omitted


class Encoder(Protocol):
    """Encodes canonical events into the frames of one client protocol. One instance serves one run.

    An encoder is deterministic, so that clients can reconnect: fed again from the run's start, it
    makes the same frames, and the caller skips those that the client already has. It closes open
    parts before the frame of an error or an end.
    """

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """The frames of one canonical event, given as its envelope.

        Empty where the dialect omits the event.
        """
        ...
