"""A view defines which messages clients read, in which dialect, and in which framing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from penstock.bus import Followed, Stored
from penstock.bus.read.follow import events, raw
from penstock.bus.streams import events_of
from penstock_edge.views.framing import Framing, Sse
from penstock_edge.views.items import Encoding
from penstock_edge.views.run_tree import Child

UPSTREAM: Final = "upstream"  # the writer of a run's source frames in RAW

Deliver = Callable[[list[Stored]], None]


def _numbers(stored: Stored) -> tuple[int, None]:
    return stored.sequence, None


class Source(Protocol):
    """Delivers messages in order, each once, until it is stopped."""

    # The source calls this function once if an error ends the delivery. The hub then ends its
    # clients' streams, which would otherwise wait for ever for further messages.
    on_failure: Callable[[BaseException], None]

    async def start(self) -> int:
        """Return the stream sequence of the first message to be delivered."""
        ...

    def patterns(self) -> Collection[str]:
        """Return the patterns under which the messages are stored, for a client's replay of what
        was stored before. Before `start`, some may be missing. They may match messages that
        `accepts` refuses."""
        ...

    async def accepts(self, stored: Stored) -> bool:
        """Return whether the source delivers this message of one of its `patterns`."""
        return True

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The canonical events of one run, in EVENTS."""

    run_id: str

    @property
    def followed(self) -> Followed:
        return events(self.run_id)


@dataclass(frozen=True, slots=True)
class RunFrames:
    """The source frames of one run, in RAW, and after them the run's terminal event."""

    run_id: str

    @property
    def followed(self) -> Followed:
        return raw(self.run_id, UPSTREAM)


@dataclass(frozen=True, slots=True)
class ManyRuns:
    """Events of many runs, in EVENTS; `open` makes the source that selects these events."""

    open: Callable[[Deliver], Source]
    shard: int = 0  # all the runs are in this shard
    run_id: str = ""  # empty, because a response over many runs names no run

    @property
    def followed(self) -> Followed:
        """Follow the whole stream. The feed finds gaps, so the hub does not look for them."""
        return Followed(events_of(self.shard), ">", "live.>", _numbers)


@dataclass(frozen=True, slots=True)
class RunTree:
    """The events of a workflow's run, and of the runs that its steps start (see `run_tree`). `open`
    makes the source from a stream sequence on. `known` are runs below the root whose event
    `workflow.step_started` may have expired."""

    run_id: str
    open: Callable[[int, Deliver], Source]
    known: tuple[Child, ...] = ()

    @property
    def followed(self) -> Followed:
        """Follow the root's events. The source finds gaps, so the hub does not look for them."""
        root = events(self.run_id)
        return Followed(root.stream, root.pattern, root.live, _numbers)


class ReadFrom(Enum):
    """Whether messages are encoded from the client's cursor on, or from the run's start on."""

    CURSOR = "cursor"
    START = "start"  # the dialect's frames depend on all earlier messages


class Delivery(Enum):
    """Whether a client can continue a stream that has ended before the end of its run."""

    RESUMABLE = "resumable"  # the client can reconnect and continue
    ONCE = "once"  # the client cannot continue, so the last frame must be an error


@dataclass(frozen=True, slots=True)
class View:
    """The events of one run or of many runs, in the dialect and framing that clients read. Clients
    whose views have the same `key` share one hub."""

    key: tuple[str, ...]
    dialect: str
    reads: RunEvents | RunFrames | ManyRuns | RunTree
    encoding: Callable[[], Encoding]  # makes the encoding of each stream or page
    notice: Callable[[str, str], bytes]  # writes a code and a message as a notice without a cursor
    reads_from: ReadFrom = ReadFrom.CURSOR
    framing: Framing = field(default_factory=Sse)
    delivery: Delivery = Delivery.RESUMABLE
    headers: Mapping[str, str] = field(default_factory=dict)  # further headers of the response

    @property
    def run_id(self) -> str:
        return self.reads.run_id

    @property
    def followed(self) -> Followed:
        return self.reads.followed

    @property
    def reads_frames(self) -> bool:
        """Whether the view's stream sequences are sequences of RAW, not of EVENTS."""
        return isinstance(self.reads, RunFrames)

    @property
    def reads_tree(self) -> bool:
        return isinstance(self.reads, RunTree)
