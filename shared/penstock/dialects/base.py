"""What every decoder and encoder is made of. Pure: no I/O, usable without a request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypedDict

from penstock.sse import Frame

Json = Any  # a JSON value: a recursive alias costs the type checker more than it tells
JsonObject = dict[str, Any]

# What an upstream may have a decoder keep and search through; README.md says what each is for.
MAX_OPEN: Final = 1_000
MAX_ITEMS: Final = 10_000
MAX_NAME_CHARS: Final = 1_024
MAX_COUNT: Final = 2**53  # of tokens; their sum must still be a number that JSON can hold


class LimitReached(ValueError):
    """More than a decoder keeps. Raised and caught within it: the run ends with code `limit`."""

    @classmethod
    def check(cls, count: int, limit: int, what: str) -> None:
        """Raises when there is one too many of it."""
        if count > limit:
            raise cls(f"the upstream has more than {limit} {what}")


def short(name: str) -> str:
    """A name or id that later events repeat: cut when long, and still another one's no more."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name[: MAX_NAME_CHARS - 17]}~{digest}"


class Ids:
    """Upstream ids that repeat within a run are made unique: `m1`, `m1#2`, …"""

    def __init__(self, used: Mapping[str, int] | None = None) -> None:
        self.used: dict[str, int] = dict(used or {})

    def unique(self, wanted: str) -> str:
        """The id itself, the first time; a long one is cut."""
        wanted = short(wanted)
        # no recursion: how long a chain of x, x#2, x#2#2 is, the upstream decides
        while (times := self.used.get(wanted, 0) + 1) > 1:
            self.used[wanted] = times
            wanted = f"{wanted}#{times}"
        self.used[wanted] = 1
        return wanted

    def make(self, prefix: str) -> str:
        """A new id of our own: `prefix-1`, `prefix-2`, …"""
        count = self.used.get(prefix, 0) + 1
        self.used[prefix] = count
        return self.unique(f"{prefix}-{count}")

    def snapshot(self) -> JsonObject:
        """The state as JSON, for `restore`."""
        return dict(self.used)

    def restore(self, state: JsonObject) -> None:
        """Goes on from a snapshot."""
        self.used = dict(state)


class Source(TypedDict):
    """Who said it (executions-sse.md). All four keys are always there."""

    agent_id: str
    agent_type: str  # "agent" | "team" | "workflow" for the outer run, "worker" for one inside it
    agent_name: str
    team_name: str | None


class Subrun(TypedDict, total=False):
    """The inner run that an event belongs to."""

    id: str
    parent_id: str
    name: str


@dataclass(slots=True)
class Draft:
    """A canonical event before it has its place in the run: no sequence and no timestamp yet.

    `type` is `category.action`; `data` has the fields of that type in `penstock.events`.
    """

    type: str
    data: JsonObject
    source: Source | None = None
    subrun: Subrun | None = None
    step_id: str | None = None


@dataclass(slots=True)
class PauseItem:
    """One thing that somebody must decide before the upstream can go on.

    `kind`: confirmation, input, external, credential, feedback, selection, review, long_running.
    `item_id` is the id by which the upstream knows the request (unique within the pause).
    """

    item_id: str
    kind: str
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
    """The upstream waits. `resume` is what its adapter needs to continue, kept verbatim."""

    items: list[PauseItem]
    resume: JsonObject
    source: Source | None = None


@dataclass(slots=True)
class AgentFacts:
    """What a decoder may know of the agent besides its frames: the configuration's words."""

    id: str
    name: str | None = None
    kind: str = "agent"  # agent | team | workflow
    drop: frozenset[str] = field(default_factory=frozenset)  # upstream event names to leave out
    client_tools: frozenset[str] = field(default_factory=frozenset)  # that the client runs (AG-UI)


def cut_off(error: str, status: str = "failed") -> JsonObject:
    """How `llm.message_completed` says that its message is not whole.

    `status` is "failed", or "partial_success" where what was said can be used as it is
    (contract: agent runs, TEXT_MESSAGE_END). A whole message has neither field.
    """
    return {"status": status, "error": error}


class Decoder(Protocol):
    """One protocol's frames to drafts. One instance lives as long as the run, over all its legs.

    Deterministic: the same frames give the same drafts, whatever the chunking and the clock.
    Never raises on any frame: what it cannot read becomes `custom.event` or `lifecycle.failed`.
    """

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """A leg's response begins (leg 1 is the start, each continue is one more)."""
        ...

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """What was decided about the pause before this leg; called right after `open(leg > 1)`.

        `items`: item id to `{"decision": "approve" | "reject", "note": str | None, "value": Any}`.
        Gives at once the tool results of which the upstream will say nothing.
        """
        ...

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """What one whole frame makes."""
        ...

    def end(self) -> Sequence[Draft | Pause]:
        """The response ended cleanly: complete, pause, or report the upstream as lost."""
        ...

    def abort(self) -> Sequence[Draft | Pause]:
        """The response was cut: close what is open. The caller reports the reason afterwards."""
        ...

    def snapshot(self) -> JsonObject:
        """The state as JSON, from which `restore` goes on; taken between legs."""
        ...

    def restore(self, state: JsonObject) -> None:
        """Go on from a snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class ClientDialect:
    """One client dialect: its encoder, and what a reader must know before the first event.

    `omitted`: the canonical types that the dialect has no event for, each with the place where
    a client sees their content instead.
    `stateful`: a frame depends on earlier events of the run, so a reader that joins in the middle
    must first feed the encoder from the run's start.
    `select_types`: takes categories and types of the dialect, and returns the types that a client
    wants; it raises ValueError on an unknown one. None where clients cannot choose.
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
    """Canonical events to the frames of one client protocol. One instance lives as long as a run.

    Deterministic, so that a client can come back: whoever feeds the run from its start gets the
    same frames, and leaves out those that the client has. Closes what is open before it says an
    error or an end.
    """

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """The frames of one canonical event, given as its envelope; none for one that has none."""
        ...
