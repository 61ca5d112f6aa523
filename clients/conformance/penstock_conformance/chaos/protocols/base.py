"""What a protocol lets a client do with a run, as requests and as the meaning of answers. Pure.

`drive` sends the requests. So a protocol can be read on one page, and says in `OFFERS` what a
client may do after its stream was cut.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from penstock_conformance.exchange import Frame, Request

End = Literal["completed", "failed"]

_WORD = re.compile(r"#(\d+)")  # the agents' words: agents/script.py


@dataclass(slots=True)
class Run:
    """One run, as its client knows it."""

    name: str  # in the script and at the counter
    message: str
    session: str
    key: str  # of a start that the server lets a client repeat
    id: str | None = None  # that the server gave; None: the start has brought nothing back
    cursor: str | None = None  # of the last frame that had one
    asked: int = 0  # how many requests followed the start
    notes: dict[str, Any] = field(default_factory=dict)  # of the protocol


@dataclass(frozen=True, slots=True)
class Said:
    """What one frame or JSON answer says: words, the run's end, or that there is no such run.

    `words` are the next ones of a stream. `shown` are words that the server repeats on purpose,
    such as the whole text at the end of a message.
    """

    words: tuple[int, ...] = ()
    shown: tuple[int, ...] = ()
    end: End | None = None
    unknown: bool = False


NOTHING = Said()


def words_in(text: object) -> tuple[int, ...]:
    """Return the numbers of the script's words in a text, or in any JSON value."""
    return tuple(int(number) for number in _WORD.findall(_text(text)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Protocol(ABC):
    """The requests of one protocol. `agent` is the agent's name at the server.

    `goes_on` allows requests that make the server continue a run which its process left, where the
    protocol has such a request. Without it, a client only reads.
    """

    OFFERS: ClassVar[str]
    GOES_ON: ClassVar[str | None] = None

    def __init__(self, agent: str, *, goes_on: bool = False) -> None:
        self.agent = agent
        self.goes_on = goes_on

    @abstractmethod
    def start(self, run: Run) -> list[Request]:
        """Return the requests that start the run; the last one has the stream, or leads to it."""

    def next(self, run: Run) -> Request | None:
        """Return the next request for a run that has not ended, or None if there is none."""
        return None

    def reread(self, run: Run) -> Request | None:
        """Return the request of a client that reads the whole run afterwards."""
        return None

    def read_headers(  # noqa: B027  # most protocols say nothing in headers
        self, run: Run, headers: Mapping[str, str]
    ) -> None:
        """Note in `run` what the headers of an answer say."""

    @abstractmethod
    def read(self, run: Run, frame: Frame) -> Said:
        """Return what a frame says, and note in `run` what later requests need."""

    def read_json(self, run: Run, body: Any) -> Said:
        """Return what the body of an answer without a stream says."""
        return NOTHING

    def closed(self, run: Run) -> Said:
        """Return what it says that a stream has ended without an error of the connection."""
        return NOTHING
