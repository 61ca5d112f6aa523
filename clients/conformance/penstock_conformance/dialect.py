"""What a protocol must say of itself, so that the rules for all protocols can be applied to it."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final
from urllib.parse import quote

from penstock_conformance.exchange import Exchange, Frame, Request

YES = "Yes, I approve. Go on."


class NotShown(Exception):
    """The server, or what is known of it, cannot show whether a statement holds. The text says why,
    and what to do about it."""


# What a server answers that does not have this kind of request.
NO_SUCH_REQUEST: Final = frozenset({404, 405, 501})
# What reading raises where a server's values have other types than the protocol's.
OTHER_TYPES: Final = (AttributeError, LookupError, TypeError, ValueError)


class What(Enum):
    """What a frame says."""

    BEGIN = "begin"
    TEXT = "text"
    CALL = "call"
    RESULT = "result"
    ASK = "ask"
    END = "end"


class How(Enum):
    """How a run, or its part up to a question, ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a frame says, in words that all protocols share. `frame` is its index.

    `id` is that of the tool call or the question, `text` the text, or the result as text.
    """

    frame: int
    what: What
    id: str = ""
    text: str = ""
    how: How = How.COMPLETED


@dataclass(frozen=True, slots=True)
class Options:
    """What is known of the server. `resume` and `cancel` have the placeholders `{run}`, `{session}`
    and the name of any header of the stream."""

    agent: str = ""
    path: str = ""  # of the protocol, below the server's address
    resume: str = ""
    cancel: str = ""
    user: str = ""  # the id of the owner, where requests have it


class Dialect(ABC):
    """A protocol. Makes requests and reads answers; does no I/O."""

    name: ClassVar[str]
    sentinels: ClassVar[frozenset[str]] = frozenset()  # data of frames that are no JSON on purpose
    # how a cancelled run may end
    cancelled_as: ClassVar[frozenset[How]] = frozenset({How.CANCELLED})
    stays_open: ClassVar[bool] = False  # whether a stream goes on after a question
    # the statuses of servers that cannot send a stream again, where the protocol lets them
    no_resume: ClassVar[frozenset[int]] = frozenset()
    # and of those that cannot cancel
    no_cancel: ClassVar[frozenset[int]] = NO_SUCH_REQUEST

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def start(self, message: str, session: str) -> Request:
        """Return the request that starts a run and streams it."""

    def lasting(self, start: Request) -> Request:
        """Return this start for a run that its client may leave, cancel and read again, where the
        protocol has starts of two kinds."""
        return start

    def prepare(self, session: str) -> Request | None:
        """Return the request that makes a session, None where a start makes it."""
        return None

    @abstractmethod
    def seen(self, frame: Frame, index: int) -> Iterator[Seen]:
        """Yield what a frame says. `Exchange.frames[index]` is the frame."""

    def read(self, exchange: Exchange) -> list[Seen]:
        """Return what the frames of a stream say."""
        return [
            seen for index, frame in enumerate(exchange.frames) for seen in self.seen(frame, index)
        ]

    def cursor(self, frame: Frame) -> str | None:
        """Return what names the place after a frame, None if nothing does."""
        return frame.id

    def is_of_run(self, frame: Frame) -> bool:
        """Return whether a frame is of the run, and no note of the server about the stream."""
        return True

    def incomplete(self, start: Request) -> Mapping[str, Request]:
        """Return what this start is without a required field, by what it lacks."""
        return {}

    def unknown_agent(self) -> Request | None:
        """Return a start of an agent that does not exist, None where an address is an agent."""
        return None

    def names(self, exchange: Exchange) -> Mapping[str, str]:
        """Return what is known of a run by its stream: `run` and `session`, where they are."""
        return {}

    def resume(self, exchange: Exchange, after: str | None) -> Request:
        """Return the request for the frames of a run after a cursor, or for all of them.

        Raises:
            NotShown: the protocol has none, and no `--resume` was passed.
        """
        path = self._filled("--resume", self.options.resume, exchange)
        return Request("GET", path, headers={} if after is None else {"last-event-id": after})

    def cancel(self, exchange: Exchange) -> Request:
        """Return the request that cancels the run of a stream.

        Raises:
            NotShown: the protocol has none, and no `--cancel` was passed.
        """
        method, _, path = self.options.cancel.rpartition(" ")
        return Request(method or "POST", self._filled("--cancel", path, exchange))

    def cancel_unknown(self) -> Request:
        """Return the request that cancels a run that does not exist."""
        method, _, path = self.options.cancel.rpartition(" ")
        if not path:
            raise NotShown(f"{self.name} defines no cancel: pass --cancel if the server has one")
        return Request(method or "POST", filled(path, _Nobodys()))

    def answer(self, asked: Exchange, *, approve: bool) -> Request:
        """Return the request that answers the questions at the end of a stream.

        Raises:
            NotShown: the protocol has no questions, or the stream has none.
        """
        raise NotShown(f"{self.name} defines no way to answer a question of an agent")

    def texts(self, asked: Exchange) -> Mapping[str, Request]:
        """Return messages that say yes to the questions, without being answers."""
        return {}

    def forged(self, asked: Exchange) -> Mapping[str, Request]:
        """Return requests that try to answer the questions in other ways, by what they forge."""
        return {}

    def _filled(self, option: str, path: str, exchange: Exchange) -> str:
        if not path:
            defined = option.removeprefix("--")
            raise NotShown(f"{self.name} defines no {defined}: pass {option} if the server has one")
        return filled(path, {**exchange.headers, **self.names(exchange)})


class _Nobodys(dict[str, str]):
    """Has a new id for every placeholder."""

    def __missing__(self, name: str) -> str:
        return str(uuid.uuid4())


def filled(path: str, names: Mapping[str, str]) -> str:
    """Return the path with its placeholders replaced.

    Raises:
        NotShown: there is nothing of this name.
    """

    class Quoted(dict[str, str]):
        def __missing__(self, name: str) -> str:
            try:
                return quote(names[name], safe="")
            except KeyError:
                raise NotShown(f"the stream has no {name}, which {path} needs") from None

    return path.format_map(Quoted())


def text_of(seen: Sequence[Seen]) -> str:
    """Return the whole text of the agent."""
    return "".join(each.text for each in seen if each.what is What.TEXT)


def ends(seen: Sequence[Seen]) -> list[Seen]:
    return [each for each in seen if each.what is What.END]


def of(seen: Sequence[Seen], what: What) -> list[Seen]:
    return [each for each in seen if each.what is what]
