"""A view: which messages clients read, in which dialect, and how they are written. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from penstock.bus import Followed, Stored
from penstock.bus.read.follow import events, raw
from penstock.bus.streams import EVENTS
from penstock_edge.views.framing import Framing, Sse
from penstock_edge.views.items import Encoding

UPSTREAM: Final = "upstream"  # the writer of a run's source frames in RAW

Deliver = Callable[[list[Stored]], None]


class Source(Protocol):
    """Delivers messages in order, each once, until it is stopped."""

    # Is called once if an error ends the delivery. Without it the clients would wait in silence.
    on_failure: Callable[[BaseException], None]

    async def start(self) -> int:
        """Begin to deliver; returns the stream sequence of the first message to be delivered.

        Raises:
            BusError: the messages cannot be followed now.
        """
        ...

    def patterns(self) -> Collection[str]:
        """The stored subjects of the messages; after `start`, also those of their history."""
        ...

    async def keep(self, stored: Stored) -> bool:
        """Whether a message under these patterns is one that the source would deliver."""
        ...

    async def stop(self) -> None:
        """Stop delivering messages."""
        ...


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The canonical events of one run, in EVENTS."""

    run_id: str

    @property
    def followed(self) -> Followed:
        """Where the messages are."""
        return events(self.run_id)


@dataclass(frozen=True, slots=True)
class RunFrames:
    """The source frames of one run, in RAW, and after them the run's terminal event."""

    run_id: str

    @property
    def followed(self) -> Followed:
        """Where the frames are."""
        return raw(self.run_id, UPSTREAM)


@dataclass(frozen=True, slots=True)
class ManyRuns:
    """Events of many runs, in EVENTS; `open` makes the source that selects them."""

    open: Callable[[Deliver], Source]
    run_id: str = ""  # a response over many runs names no run

    @property
    def followed(self) -> Followed:
        """All of EVENTS: the feed finds gaps in it, so the hub does not look for any."""
        return Followed(EVENTS, ">", "live.>", lambda before, after: True)


class ReadFrom(Enum):
    """From where the messages must be encoded for a client that has a cursor."""

    CURSOR = "cursor"
    START = "start"  # the dialect's frames depend on all earlier messages


class Delivery(Enum):
    """What a client can do after its stream has ended too early."""

    RESUMABLE = "resumable"  # the client can reconnect and continue
    ONCE = "once"  # the client cannot: the stream itself must say that it is incomplete


@dataclass(frozen=True, slots=True)
class View:
    """One run, or many, as clients read them. Clients of the same `key` share one hub."""

    key: tuple[str, ...]
    dialect: str
    reads: RunEvents | RunFrames | ManyRuns
    encoding: Callable[[], Encoding]  # each reading has an encoding of its own
    notice: Callable[[str, str], bytes]  # from a code and a message; the notice has no cursor
    reads_from: ReadFrom = ReadFrom.CURSOR
    framing: Framing = field(default_factory=Sse)
    delivery: Delivery = Delivery.RESUMABLE

    @property
    def run_id(self) -> str:
        """The run; empty for many runs."""
        return self.reads.run_id

    @property
    def followed(self) -> Followed:
        """The stream and the subjects of the messages."""
        return self.reads.followed

    @property
    def reads_frames(self) -> bool:
        """Whether stream sequences are those of RAW."""
        return isinstance(self.reads, RunFrames)
