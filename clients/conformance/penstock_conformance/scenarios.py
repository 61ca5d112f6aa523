"""What is done with a server, for every protocol alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from penstock_conformance.dialect import NO_SUCH_REQUEST, NotShown, What, of
from penstock_conformance.exchange import Exchange, Request, User
from penstock_conformance.trial import Scenario, Trial, has, streamed
from penstock_conformance.wire import OnFrame

# The cuts of a stream that has more frames are spread over it.
MAX_CUTS: Final = 100
_CUTS_AT_ONCE: Final = 4
# A client does not read for so long, and then until others beside it have ended, but no longer than
# the second time.
STALL_S: Final = 4.0
MAX_STALL_S: Final = 20.0
# How a slow client reads: it waits so long before each piece, so many times.
_PAUSE_S: Final = 1.0
_PAUSES: Final = 5
_BIG_BYTES: Final = 2 * 1024 * 1024
_DEEP: Final = 100_000
# What an agent that repeats it could be made to send: the end of a frame and a frame of its own,
# each line end of SSE, and characters that are line ends elsewhere.
FORGED_TEXTS: Final = (
    'a\n\ndata: {"type": "forged"}\n\nb',
    "event: forged",
    "id: forged\u2028c\u0085d",
)
FORGED_FRAMES: Final = "\r\n".join(FORGED_TEXTS)
_JSON: Final = {"content-type": "application/json"}

Tries = Mapping[str, Exchange]


@dataclass(frozen=True, slots=True)
class Cuts:
    """A stream, and what came after each of its frames (by the frame's index)."""

    whole: Exchange
    rests: Mapping[int, Exchange]


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """A stream whose client left, what it got when it came back, and the whole stream."""

    first: Exchange
    rest: Exchange
    whole: Exchange


@dataclass(frozen=True, slots=True)
class Cursors:
    """A stream, and the answers to cursors that are not its own."""

    whole: Exchange
    tries: Tries


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A stream that was cancelled, and the answers to the first cancel and to a second one."""

    stream: Exchange
    cancel: Exchange
    again: Exchange


@dataclass(frozen=True, slots=True)
class Answered:
    """A question of the agent, the answer of its user, and the same answer again."""

    asked: Exchange
    answered: Exchange
    again: Exchange
    ran: str


@dataclass(frozen=True, slots=True)
class Forged:
    """A question, requests that try to answer it, and then the proper answer."""

    asked: Exchange
    tries: Tries
    proper: Exchange
    ran: str


@dataclass(frozen=True, slots=True)
class Hostile:
    """The answers to requests that make no sense, and to a proper one afterwards."""

    tries: Tries
    afterwards: Exchange


@dataclass(frozen=True, slots=True)
class Stalled:
    """A client that did not read for a while, or read slowly, and others beside it.

    `fast` are the same stream to clients that read at once, if it should be the same. `alone_s` is
    how long a client waits for its end with nobody beside it.
    """

    stalled: Exchange
    beside: tuple[Exchange, ...]
    others_ended: bool = True  # before it went on
    alone_s: float = 0.0
    fast: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True)
class Foreign:
    """A stream of the owner, and what another user tried when it had `at` frames."""

    stream: Exchange
    tries: Tries
    at: int


def _said(name: str) -> Scenario[Exchange]:
    async def record(at: Trial) -> Exchange:
        return await at.wire.send(await at.start(name))

    return Scenario(name, record)


TEXT: Final = _said("text")
CALLS: Final = _said("calls")
FAILS: Final = _said("fails")
THINKS: Final = _said("thinks")


async def _asked(at: Trial) -> Exchange:
    """Return a stream up to its question."""

    async def until_asked(so_far: Exchange) -> bool:
        return not (at.dialect.stays_open and has(at.dialect, so_far.frames, What.ASK))

    return await at.stream(await at.start("asks"), until_asked)


ASKS: Final = Scenario("asks", _asked)
STREAMS: Final = (TEXT, CALLS, ASKS, FAILS, THINKS)


async def _echo(at: Trial) -> Exchange:
    return await at.stream(await at.start("echo", FORGED_FRAMES))


ECHO: Final = Scenario("echo", _echo)


def _cuts(stream: Scenario[Exchange]) -> Scenario[Cuts]:
    async def record(at: Trial) -> Cuts:
        whole = await _lasting(at, stream)
        number = len(whole.frames)
        places = range(number) if number <= MAX_CUTS else _spread(number)
        turn = asyncio.Semaphore(_CUTS_AT_ONCE)

        async def rest(index: int) -> tuple[int, Exchange]:
            async with turn:
                return index, await at.resume(whole, _cursor(at, whole, index))

        _cursor(at, whole, 0)
        at.dialect.resume(whole, None)
        with_cursors = [
            index for index in places if at.dialect.cursor(whole.frames[index]) is not None
        ]
        return Cuts(whole, dict(await asyncio.gather(*map(rest, with_cursors))))

    return Scenario(f"{stream.name}, cut", record)


async def _lasting(at: Trial, stream: Scenario[Exchange]) -> Exchange:
    """Return a stream that can be read again: the recorded one, unless a start says which can."""
    start = await at.start(stream.name)
    lasting = at.dialect.lasting(start)
    return streamed(await at.get(stream)) if lasting is start else await at.stream(lasting)


def _spread(number: int) -> list[int]:
    return sorted({round(each * (number - 1) / (MAX_CUTS - 1)) for each in range(MAX_CUTS)})


def _cursor(at: Trial, exchange: Exchange, index: int) -> str:
    cursor = at.dialect.cursor(exchange.frames[index])
    if cursor is None:
        raise NotShown("the frames have no ids, so no client can say which of them it has")
    return cursor


CUTS: Final = (_cuts(TEXT), _cuts(CALLS))


async def _broken_off(at: Trial) -> BrokenOff:
    first = await at.stream(await at.lasting("slow"), _until_texts(at, 2))
    cursor = _cursor(at, first, -1)
    is_stopped = False

    async def stop(so_far: Exchange) -> bool:
        nonlocal is_stopped
        if not is_stopped and len(of(at.dialect.read(so_far), What.TEXT)) >= 2:
            is_stopped = True
            await _cancel(at, first)
        return True

    rest = await at.resume(first, cursor, stop)
    return BrokenOff(first, rest, await at.resume(first, None))


BROKEN_OFF: Final = Scenario("slow, broken off", _broken_off)


def _until_texts(at: Trial, number: int) -> OnFrame:
    async def on_frame(so_far: Exchange) -> bool:
        return len(of(at.dialect.read(so_far), What.TEXT)) < number

    return on_frame


async def _cancel(at: Trial, exchange: Exchange) -> bool:
    """Cancel a run that would take long; return whether the server has a way."""
    try:
        answer = await at.wire.send(at.dialect.cancel(exchange))
    except NotShown:
        return False
    return answer.status not in NO_SUCH_REQUEST


async def _subscribed(at: Trial) -> Exchange:
    found: list[Exchange] = []

    async def subscribe(so_far: Exchange) -> bool:
        if not found and has(at.dialect, so_far.frames, What.TEXT):
            found.append(await at.resume(so_far, None, _leave))
            await _cancel(at, so_far)
        return True

    stream = await at.stream(await at.lasting("slow"), subscribe)
    if not found:
        raise NotShown(f"{stream} has no text after which it could be read again")
    return found[0]


async def _ended(at: Trial) -> Exchange:
    return await at.resume(streamed(await at.get(TEXT)), None)


SUBSCRIBED: Final = Scenario("slow, read again from its start", _subscribed)
ENDED: Final = Scenario("text, read again from its start", _ended)


async def _cursors(at: Trial) -> Cursors:
    whole = await _lasting(at, TEXT)
    other = await at.stream(await at.lasting("text"))
    own = {at.dialect.cursor(frame) for frame in whole.frames}
    known = await at.resume(whole, _cursor(at, whole, 0))
    if known.status >= 400:
        raise NotShown(f"the server refuses a cursor of the run, too: {known}")
    foreign = {at.dialect.cursor(frame) for frame in other.frames} - own - {None}
    tries = {"no cursor at all": "~no cursor~"}
    if foreign:
        tries["a cursor of another run"] = sorted(map(str, foreign))[0]
    return Cursors(
        whole,
        {name: await at.resume(whole, cursor) for name, cursor in tries.items()},
    )


CURSORS: Final = Scenario("text, other cursors", _cursors)


async def _cancelled(at: Trial) -> Cancelled:
    answers: list[Exchange] = []

    async def cancel(so_far: Exchange) -> bool:
        if not answers and has(at.dialect, so_far.frames, What.TEXT):
            answers.append(await at.wire.send(at.dialect.cancel(so_far)))
        return True

    stream = await at.stream(await at.lasting("slow"), cancel)
    if not answers:
        raise NotShown(f"{stream} has no text in which it could be cancelled")
    return Cancelled(stream, answers[0], await at.wire.send(at.dialect.cancel(stream)))


CANCELLED: Final = Scenario("slow, cancelled", _cancelled)


async def _unknown(at: Trial) -> Exchange:
    request = at.dialect.cancel_unknown()
    try:
        known = (await at.get(CANCELLED)).cancel
    except NotShown:
        return await at.wire.send(request)
    if known.status in NO_SUCH_REQUEST:
        raise NotShown(f"the server does not cancel a run that exists, either: {known}")
    return await at.wire.send(request)


UNKNOWN: Final = Scenario("cancel of an unknown run", _unknown)


def _answered(name: str, *, approve: bool) -> Scenario[Answered]:
    async def record(at: Trial) -> Answered:
        asked = await _asked(at)
        request = at.dialect.answer(asked, approve=approve)
        answered, again = await at.wire.send(request), await at.wire.send(request)
        return Answered(asked, answered, again, _ran(at))

    return Scenario(name, record)


def _ran(at: Trial) -> str:
    if not at.ran:
        raise NotShown("no text is known that shows that the tool ran: pass --ran")
    return at.ran


APPROVED: Final = _answered("approved", approve=True)
REJECTED: Final = _answered("rejected", approve=False)


async def _texts(at: Trial) -> Forged:
    return await _forged(at, at.dialect.texts)


async def _forgeries(at: Trial) -> Forged:
    return await _forged(at, at.dialect.forged)


async def _forged(at: Trial, made_of: Callable[[Exchange], Mapping[str, Request]]) -> Forged:
    """Send what is made of a question. One that was answered shows no more, so ask then anew."""
    asked, ran = await _asked(at), _ran(at)
    at.dialect.answer(asked, approve=True)
    names = list(made_of(asked))
    if not names:
        raise NotShown(f"{at.dialect.name} has no other requests that could be taken for an answer")
    tries: dict[str, Exchange] = {}
    for name in names:
        tries[name] = await at.wire.send(made_of(asked)[name])
        if ran in tries[name].content.decode(errors="replace"):
            asked = await _asked(at)
    return Forged(asked, tries, await at.wire.send(at.dialect.answer(asked, approve=True)), ran)


TEXTS: Final = Scenario("asks, then texts", _texts)
FORGERIES: Final = Scenario("asks, then forgeries", _forgeries)


async def _invalid(at: Trial) -> Hostile:
    start = await at.start("text")
    bodies: dict[str, Request] = {
        "no JSON": _raw(start, b"{"),
        "an empty body": _raw(start, b""),
        "a list": _raw(start, b"[]"),
        "a deep list": _raw(start, b"[" * _DEEP + b"]" * _DEEP),
        **at.dialect.incomplete(start),
    }
    tries = {name: await at.wire.send(each) for name, each in bodies.items()}
    return Hostile(tries, await at.wire.send(await at.start("text")))


def _raw(start: Request, content: bytes) -> Request:
    headers = {**start.headers, **_JSON}
    return replace(start, body=None, form=None, content=content, headers=headers)


INVALID: Final = Scenario("invalid requests", _invalid)


async def _big(at: Trial) -> Exchange:
    return await at.wire.send(await at.start("text", "x" * _BIG_BYTES))


BIG: Final = Scenario("a message of 2 MB", _big)


async def _nowhere(at: Trial) -> Exchange:
    request = at.dialect.unknown_agent()
    if request is None:
        raise NotShown(f"{at.dialect.name} has an address for each agent")
    return await at.wire.send(request)


NOWHERE: Final = Scenario("an agent that does not exist", _nowhere)


async def _stalled(at: Trial) -> Stalled:
    others = asyncio.Event()
    have_ended = False

    async def stall(so_far: Exchange, earlier: int) -> None:
        nonlocal have_ended
        if earlier == 0:
            await asyncio.sleep(STALL_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(others.wait(), MAX_STALL_S - STALL_S)
            have_ended = others.is_set()
            await _cancel(at, so_far)

    alone = await at.get(TEXT)
    found = await _beside(at, await at.lasting("slow"), stall, others)
    return replace(found, others_ended=have_ended, alone_s=alone.took_s)


async def _slowly(at: Trial) -> Stalled:
    async def pause(so_far: Exchange, earlier: int) -> None:
        if earlier < _PAUSES:
            await asyncio.sleep(_PAUSE_S)

    fast = [await at.stream(await at.start("long")) for _ in range(2)]
    found = await _beside(at, await at.start("long"), pause, asyncio.Event())
    return replace(found, fast=tuple(fast))


async def _beside(
    at: Trial,
    start: Request,
    wait: Callable[[Exchange, int], Awaitable[None]],
    others: asyncio.Event,
) -> Stalled:
    """Read a stream and wait before each piece; `wait` gets the number of pieces before. `others`
    is set when the clients beside it have ended."""
    has_begun = asyncio.Event()
    pieces = count()

    async def on_frame(so_far: Exchange) -> bool:
        has_begun.set()
        await wait(so_far, next(pieces))
        return True

    slow = asyncio.create_task(at.wire.send(start, on_frame, slowly=True))
    try:
        begun = asyncio.create_task(has_begun.wait())
        await asyncio.wait({slow, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        beside = [await at.wire.send(await at.start("text")) for _ in range(2)]
        others.set()
        return Stalled(streamed(await slow), tuple(beside))
    finally:
        slow.cancel()


STALLED: Final = Scenario("a client that stops reading", _stalled)
SLOWLY: Final = Scenario("a client that reads slowly", _slowly)


async def _leave(so_far: Exchange) -> bool:
    return False


def _require_other(at: Trial) -> None:
    if User.OTHER not in at.wire.credentials:
        raise NotShown("the credentials of a second user are not known: pass --other-header")


async def _foreign(at: Trial) -> Foreign:
    _require_other(at)
    tries: dict[str, Exchange] = {}
    seen_at = texts_at = 0
    is_tried = is_stopped = False

    async def by_other(request: Request) -> Exchange:
        return await at.wire.send(replace(request, user=User.OTHER), _leave)

    async def on_frame(so_far: Exchange) -> bool:
        nonlocal seen_at, texts_at, is_tried, is_stopped
        texts = len(of(at.dialect.read(so_far), What.TEXT))
        if texts and not is_tried:
            is_tried, seen_at, texts_at = True, len(so_far.frames), texts
            with suppress(NotShown):
                read = at.dialect.resume(so_far, None)
                # What its owner cannot read either shows nothing.
                if (await at.wire.send(read, _leave)).status < 400:
                    tries["reads it"] = await by_other(read)
            with suppress(NotShown):
                tries["cancels it"] = await by_other(at.dialect.cancel(so_far))
            return bool(tries)
        if is_tried and not is_stopped and texts > texts_at:
            is_stopped = True
            if not await _cancel(at, so_far):
                tries.pop("cancels it", None)
        return True

    stream = await at.stream(await at.lasting("slow"), on_frame)
    if not tries:
        raise NotShown("there is no way to read or to cancel a run, not even for its owner")
    return Foreign(stream, tries, seen_at)


FOREIGN: Final = Scenario("another user, at a run", _foreign)


async def _answered_by_other(at: Trial) -> Forged:
    _require_other(at)

    def by_other(asked: Exchange) -> Mapping[str, Request]:
        answer = at.dialect.answer(asked, approve=True)
        return {"an answer of another user": replace(answer, user=User.OTHER)}

    return await _forged(at, by_other)


ANSWERED_BY_OTHER: Final = Scenario("another user, at a question", _answered_by_other)


async def _nobody(at: Trial) -> Exchange:
    if not at.wire.credentials.get(User.OWNER):
        raise NotShown("the server asks for no credentials: pass --header if it does")
    return await at.wire.send(replace(await at.start("text"), user=User.NOBODY))


NOBODY: Final = Scenario("a start without credentials", _nobody)
