"""A trial of one server: what the rules need is recorded once, when the first of them asks."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penstock_conformance.dialect import OTHER_TYPES, Dialect, NotShown, Seen, What
from penstock_conformance.exchange import Exchange, Frame, Request
from penstock_conformance.wire import OnFrame, Wire

T = TypeVar("T")

# What an agent can be made to do by a message.
ACTS = ("text", "calls", "asks", "fails", "thinks", "slow", "long", "echo")


@dataclass(frozen=True, slots=True)
class Scenario(Generic[T]):
    """Something that is done with the server once, and what was recorded of it.

    `record` raises `NotShown` if it cannot be done.
    """

    name: str
    record: Callable[[Trial], Awaitable[T]]


@dataclass
class Trial:
    """A server, and what was recorded of it.

    `messages` has what makes the agent do each of `ACTS`. `ran` is a text that only the
    result of the tool has for which the agent asks. `recorded` has, by the names of scenarios,
    what was recorded, or why it could not be.
    """

    wire: Wire
    dialect: Dialect
    messages: Mapping[str, str]
    ran: str = ""
    recorded: dict[str, Any] = field(default_factory=dict)

    async def get(self, scenario: Scenario[T]) -> T:
        """Return the record of a scenario, which is made once.

        Raises:
            NotShown: it cannot be made.
        """
        if scenario.name not in self.recorded:
            try:
                self.recorded[scenario.name] = await scenario.record(self)
            except NotShown as reason:
                self.recorded[scenario.name] = reason
            except OTHER_TYPES as error:
                told = f"{scenario.name}: a value is not of its type: {error!r}"
                self.recorded[scenario.name] = NotShown(told)
        found = self.recorded[scenario.name]
        if isinstance(found, NotShown):
            raise found
        made: T = found
        return made

    async def start(self, name: str, more: str = "") -> Request:
        """Return a start of an agent that then does this, in a new session, which is made first
        where the protocol demands it. `more` is added to the message.

        Raises:
            NotShown: no message is known that makes the agent do it.
        """
        if name not in self.messages:
            raise NotShown(f"no message is known that makes the agent do this: pass --{name}")
        session = str(uuid.uuid4())
        if (prepare := self.dialect.prepare(session)) is not None:
            await self.wire.send(prepare)
        return self.dialect.start(f"{self.messages[name]} {more}".strip(), session)

    async def lasting(self, name: str) -> Request:
        """Return such a start for a run that its client may leave, cancel and read again.

        Raises:
            NotShown: no message is known that makes the agent do it.
        """
        return self.dialect.lasting(await self.start(name))

    async def resume(
        self, exchange: Exchange, after: str | None, on_frame: OnFrame | None = None
    ) -> Exchange:
        """Ask for the frames of a run after a cursor, or for all of them.

        Raises:
            NotShown: the protocol or the server has no such request.
        """
        answer = await self.wire.send(self.dialect.resume(exchange, after), on_frame)
        if answer.status in self.dialect.no_resume:
            raise NotShown(f"the server does not send a stream again: {answer}")
        return answer

    async def stream(self, request: Request, on_frame: OnFrame | None = None) -> Exchange:
        """Send a request whose answer is a stream, and record it.

        Raises:
            NotShown: the answer is no stream.
        """
        return streamed(await self.wire.send(request, on_frame))


def streamed(exchange: Exchange) -> Exchange:
    """Return the exchange, if it is a stream.

    Raises:
        NotShown: it is none.
    """
    if exchange.status != 200 or not exchange.frames:
        said = exchange.content[:200].decode(errors="replace")
        raise NotShown(f"{exchange} is no stream: {said}")
    return exchange


def seen_in(dialect: Dialect, frames: Sequence[Frame]) -> list[Seen]:
    return [seen for index, frame in enumerate(frames) for seen in dialect.seen(frame, index)]


def has(dialect: Dialect, frames: Sequence[Frame], what: What) -> bool:
    return any(each.what is what for each in seen_in(dialect, frames))
