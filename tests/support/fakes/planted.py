"""Faults that are planted between a client and a real server: each changes what passes.

The tool of clients/conformance must find each of them. `FAULTS` has them by the rule that finds
them. A fault is a function of a request and of the way to the server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

Forward = Callable[[httpx.Request], Awaitable[httpx.Response]]
Fault = Callable[[httpx.Request, Forward], Awaitable[httpx.Response]]
Frames = AsyncGenerator[bytes, None]
Json = dict[str, Any]
_LATE_S = 0.5  # after which a reader is late


@dataclass
class Planted(httpx.AsyncBaseTransport):
    """The way to a server, with one fault."""

    fault: Fault
    real: httpx.AsyncHTTPTransport = field(default_factory=httpx.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.fault(request, self.real.handle_async_request)

    async def aclose(self) -> None:
        await self.real.aclose()


class _Body(httpx.AsyncByteStream):
    """The body of a changed answer."""

    def __init__(self, frames: Frames, answer: httpx.Response) -> None:
        self._frames = frames
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for frame in self._frames:
            yield frame

    async def aclose(self) -> None:
        await self._frames.aclose()
        await self._answer.aclose()


async def _frames(answer: httpx.Response) -> Frames:
    rest = b""
    async for piece in answer.aiter_raw():
        *frames, rest = (rest + piece).split(b"\n\n")
        for frame in frames:
            yield frame + b"\n\n"
    if rest:
        yield rest


def _is_stream(answer: httpx.Response) -> bool:
    return str(answer.headers.get("content-type")).startswith("text/event-stream")


def _event(frame: bytes) -> Json:
    found = re.search(rb"^data: (.*)$", frame, re.MULTILINE)
    try:
        event = json.loads(found[1]) if found else {}
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _with(frame: bytes, **changes: Any) -> bytes:
    data = json.dumps({**_event(frame), **changes}).encode()
    return re.sub(rb"^data: .*$", lambda _: b"data: " + data, frame, flags=re.MULTILINE)


def _body(request: httpx.Request) -> Json:
    try:
        body = json.loads(request.content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _again(
    request: httpx.Request, body: Json | None = None, **headers: str | None
) -> httpx.Request:
    """Return the request with another body, or with other headers; None removes a header."""
    kept = {
        name: value
        for name, value in request.headers.items()
        if name not in ("content-length", *headers)
    }
    more = {name: value for name, value in headers.items() if value is not None}
    content = request.content if body is None else json.dumps(body).encode()
    return httpx.Request(
        request.method,
        request.url,
        headers={**kept, **more},
        content=content,
        extensions=request.extensions,
    )


def _said(status: int, **body: Any) -> httpx.Response:
    return httpx.Response(status, json=body)


# --- faults of streams


def of_frames(change: Callable[[Frames], Frames]) -> Fault:
    """Change the frames of every stream."""

    async def fault(request: httpx.Request, forward: Forward) -> httpx.Response:
        answer = await forward(request)
        if not _is_stream(answer):
            return answer
        body = _Body(change(_frames(answer)), answer)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body)

    return fault


def each(change: Callable[[bytes], Iterator[bytes]]) -> Fault:
    """Change each frame alone."""

    async def changed(frames: Frames) -> Frames:
        async for frame in frames:
            for made in change(frame):
                yield made

    return of_frames(changed)


def typed(name: str, change: Callable[[bytes], Iterator[bytes]]) -> Fault:
    """Change the frames of this type."""
    return each(lambda frame: change(frame) if _event(frame).get("type") == name else iter([frame]))


def dropped(frame: bytes) -> Iterator[bytes]:
    return iter(())


def doubled(frame: bytes) -> Iterator[bytes]:
    return iter((frame, frame))


def instead(**changes: Any) -> Callable[[bytes], Iterator[bytes]]:
    return lambda frame: iter((_with(frame, **changes),))


async def _swapped(frames: Frames) -> Frames:
    first = await anext(frames)
    async for second in frames:
        yield second
        yield first
        break
    async for rest in frames:
        yield rest


async def _cut_after_the_end(frames: Frames) -> Frames:
    async for frame in frames:
        yield frame
    raise httpx.RemoteProtocolError("cut on purpose")


async def _same_ids(frames: Frames) -> Frames:
    async for frame in frames:
        yield re.sub(rb"^id: .*$", b"id: 7-0", frame, flags=re.MULTILINE)


async def _results_first(frames: Frames) -> Frames:
    calls = []
    async for frame in frames:
        kind = str(_event(frame).get("type"))
        if kind in ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"):
            calls.append(frame)
            continue
        yield frame
        if kind == "TOOL_CALL_RESULT":
            for call in calls:
                yield call


def _texts_are_raw(frame: bytes) -> Iterator[bytes]:
    """Write the text as it is, with its line ends."""
    delta = _event(frame).get("delta")
    yield (
        frame
        if not isinstance(delta, str)
        else frame.replace(json.dumps(delta, ensure_ascii=False)[1:-1].encode(), delta.encode())
    )


# --- faults of single requests


def _is_resume(request: httpx.Request) -> bool:
    return request.method == "GET" and "events" in request.url.path


def _is_cancel(request: httpx.Request) -> bool:
    return request.url.path.endswith("/cancel")


async def _ignores_cursors(request: httpx.Request, forward: Forward) -> httpx.Response:
    if _is_resume(request):
        request = _again(request, **{"last-event-id": None})
    return await forward(request)


def _loses_one(*, on_resume: bool) -> Fault:
    """Lose the first frame of a resumed stream, or of one that was read from its start again."""

    async def without_first(frames: Frames) -> Frames:
        await anext(frames, None)
        async for frame in frames:
            yield frame

    async def fault(request: httpx.Request, forward: Forward) -> httpx.Response:
        if _is_resume(request) and ("last-event-id" in request.headers) is on_resume:
            return await of_frames(without_first)(request, forward)
        return await forward(request)

    return fault


async def _starts_anywhere(request: httpx.Request, forward: Forward) -> httpx.Response:
    """Take any text for a cursor, and begin somewhere."""
    answer = await forward(request)
    if not _is_resume(request) or answer.status_code < 400:
        return answer
    await answer.aclose()
    without = _again(request, **{"last-event-id": None})
    return await _loses_one(on_resume=False)(without, forward)


class _StopsWithItsClient:
    """Cancels a run when its client leaves."""

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        answer = await forward(request)
        if request.method != "POST" or not _is_stream(answer):
            return answer

        async def frames() -> Frames:
            is_whole = False
            try:
                async for frame in _frames(answer):
                    yield frame
                is_whole = True
            finally:
                if not is_whole:
                    run_id = answer.headers["penstock-run-id"]
                    url = request.url.copy_with(path=f"/v1/runs/{run_id}/cancel")
                    cancel = httpx.Request("POST", url, headers=_credentials(request))
                    await (await forward(cancel)).aread()

        body = _Body(frames(), answer)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body)


def _credentials(request: httpx.Request) -> Mapping[str, str]:
    return {"authorization": request.headers["authorization"]}


def answered(status: int, which: Callable[[httpx.Request], bool], after: int = 0) -> Fault:
    """Answer these requests with this status, after so many of them."""
    seen = 0

    async def fault(request: httpx.Request, forward: Forward) -> httpx.Response:
        nonlocal seen
        if which(request):
            seen += 1
            if seen > after:
                return _said(status)
        return await forward(request)

    return fault


def _is_invalid(request: httpx.Request) -> bool:
    return (
        request.method == "POST"
        and "messages" not in _body(request)
        and bool(request.url.path.startswith("/agui"))
    )


class _DiesOfIt:
    """Answers nothing more after an invalid request."""

    def __init__(self) -> None:
        self._is_dead = False

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        if self._is_dead:
            raise httpx.ConnectError("refused on purpose")
        self._is_dead = _body(request).get("messages") == "Hello"
        return await forward(request)


def payload(change: Callable[[Json], Json]) -> Fault:
    """Change the answers to interrupts on their way."""

    async def fault(request: httpx.Request, forward: Forward) -> httpx.Response:
        body = _body(request)
        if not body.get("resume"):
            return await forward(request)
        return await forward(_again(request, {**body, "resume": [*map(change, body["resume"])]}))

    return fault


class _Obliging:
    """Takes whatever `is_yes` accepts for a yes to the last interrupt of the thread."""

    def __init__(self, is_yes: Callable[[Json], bool]) -> None:
        self._is_yes = is_yes
        self._interrupts: dict[str, str] = {}

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        body = _body(request)
        thread = str(body.get("threadId"))
        if thread in self._interrupts and self._is_yes(body):
            entry = {"interruptId": self._interrupts[thread], "status": "resolved"}
            resume = [{**entry, "payload": {"approved": True}}]
            request = _again(request, {**body, "resume": resume})

        def remember(frame: bytes) -> Iterator[bytes]:
            for interrupt in (_event(frame).get("outcome") or {}).get("interrupts") or ():
                self._interrupts[thread] = interrupt["id"]
            yield frame

        return await each(remember)(request, forward)


def _says_yes(body: Json) -> bool:
    last = (body.get("messages") or [{}])[-1]
    return "approve" in str(last.get("content")) and not body.get("resume")


def _names_another(body: Json) -> bool:
    return bool(body.get("resume"))


class _RunsAgain:
    """Sends what the first answer had, as if the tool had run once more."""

    def __init__(self) -> None:
        self._first: bytes | None = None

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        if not _body(request).get("resume"):
            return await forward(request)
        if self._first is None:
            answer = await forward(request)
            self._first = await answer.aread()
            return httpx.Response(200, headers=answer.headers, content=self._first)
        content = re.sub(rb"\nid: (.*)", rb"\nid: 9\1", self._first)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)


class _OneAtATime:
    """Serves the next request when the last answer has been read."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        if _is_cancel(request):
            return await forward(request)
        await self._turn.acquire()
        try:
            answer = await forward(request)
        except BaseException:
            self._turn.release()
            raise

        async def frames() -> Frames:
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            finally:
                self._turn.release()

        body = _Body(frames(), answer)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body)


async def _ends_when_late(frames: Frames) -> Frames:
    """Drop the rest of a stream whose reader has waited."""
    last = asyncio.get_running_loop().time()
    async for frame in frames:
        now = asyncio.get_running_loop().time()
        if now - last > _LATE_S:
            return
        yield frame
        last = now


async def _loses_texts_when_late(frames: Frames) -> Frames:
    """Drop the texts for which the reader has no time, in silence."""
    last = asyncio.get_running_loop().time()
    async for frame in frames:
        now = asyncio.get_running_loop().time()
        if now - last <= _LATE_S or _event(frame).get("type") != "TEXT_MESSAGE_CONTENT":
            yield frame
        last = now


class _EveryoneIsTheOwner:
    """Takes every caller that `which` accepts for the first one."""

    def __init__(self, which: Callable[[httpx.Request], bool]) -> None:
        self._owner: str | None = None
        self._which = which

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        self._owner = self._owner or request.headers.get("authorization")
        if self._which(request) and self._owner is not None:
            request = _again(request, authorization=self._owner)
        return await forward(request)


async def _without_credentials(request: httpx.Request, forward: Forward) -> httpx.Response:
    if "authorization" in request.headers:
        return await forward(request)
    return httpx.Response(
        200, headers={"content-type": "text/event-stream"}, content=b'data: {"type": "x"}\n\n'
    )


class _Disturbed:
    """Ends every stream as soon as a second user comes."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._is_over = False

    async def __call__(self, request: httpx.Request, forward: Forward) -> httpx.Response:
        caller = request.headers.get("authorization")
        self._owner = self._owner or caller
        self._is_over = self._is_over or caller != self._owner

        async def until_then(frames: Frames) -> Frames:
            async for frame in frames:
                if self._is_over:
                    return
                yield frame

        return await of_frames(until_then)(request, forward)


def _as_bytes(old: bytes, new: bytes) -> Fault:
    return each(lambda frame: iter((frame.replace(old, new),)))


async def _plain(request: httpx.Request, forward: Forward) -> httpx.Response:
    answer = await forward(request)
    answer.headers["content-type"] = "text/plain"
    return answer


SUCCESS = {"outcome": {"type": "success"}}

# The faults of an AG-UI server, each by the name of the rule that must find it. Each is made anew,
# because some of them remember what has passed.
FAULTS: Mapping[str, Callable[[], Fault]] = {
    "is-stream": lambda: _plain,
    "is-json": lambda: typed("RUN_FINISHED", lambda frame: iter((frame.replace(b"}", b""),))),
    "is-utf8": lambda: _as_bytes(b'"TEXT_MESSAGE_START"', b'"TEXT_MESSAGE_START\xff"'),
    "lines": lambda: _as_bytes(b"\n", b"\r\n"),
    "shapes": lambda: typed("RUN_STARTED", instead(parentRunId=None)),
    "ids": lambda: typed("RUN_STARTED", instead(runId="another")),
    "begins": lambda: of_frames(_swapped),
    "calls-first": lambda: of_frames(_results_first),
    "spans": lambda: typed("TEXT_MESSAGE_END", dropped),
    "ends-once": lambda: typed("RUN_FINISHED", doubled),
    "closes": lambda: of_frames(_cut_after_the_end),
    "completes": lambda: typed("RUN_FINISHED", instead(type="RUN_ERROR", message="no")),
    "fails": lambda: typed("RUN_ERROR", instead(type="RUN_FINISHED")),
    "once": lambda: typed("TOOL_CALL_RESULT", doubled),
    "ids-once": lambda: of_frames(_same_ids),
    "resumes": lambda: _ignores_cursors,
    "resumes-live": lambda: _loses_one(on_resume=True),
    "goes-on": _StopsWithItsClient,
    "gaps": lambda: _starts_anywhere,
    "cancels": lambda: typed("RUN_FINISHED", instead(**SUCCESS)),
    "cancels-again": lambda: answered(500, _is_cancel, after=1),
    "cancels-unknown": lambda: answered(200, _is_cancel),
    "waits": lambda: typed("RUN_FINISHED", instead(**SUCCESS)),
    "approves": lambda: payload(lambda entry: {**entry, "payload": {"approved": False}}),
    "rejects": lambda: payload(lambda entry: {**entry, "payload": {"approved": True}}),
    "decides-once": _RunsAgain,
    "no-text": lambda: _Obliging(_says_yes),
    "no-forgery": lambda: _Obliging(_names_another),
    "invalid": lambda: answered(500, _is_invalid),
    "survives": _DiesOfIt,
    "big": lambda: answered(500, lambda request: len(request.content) > 1024 * 1024),
    "no-forged-frames": lambda: each(_texts_are_raw),
    "echoes": lambda: _as_bytes("\u2028".encode(), b" "),
    "no-trace": lambda: typed(
        "RUN_ERROR", instead(message="Traceback (most recent call last): line 1")
    ),
    "beside": _OneAtATime,
    "reads-late": lambda: of_frames(_ends_when_late),
    "reads-all": lambda: of_frames(_loses_texts_when_late),
    "foreign": lambda: _EveryoneIsTheOwner(_is_resume),
    "undisturbed": _Disturbed,
    "own-answer": lambda: _EveryoneIsTheOwner(lambda request: True),
    "anonymous": lambda: _without_credentials,
}
# More ways in which a rule can be broken.
MORE: Mapping[str, tuple[str, Callable[[], Fault]]] = {
    "no end": ("ends-once", lambda: typed("RUN_FINISHED", dropped)),
    "a text after the end": (
        "ends-once",
        lambda: typed(
            "RUN_FINISHED",
            lambda frame: iter((frame, _with(frame, type="TEXT_MESSAGE_CONTENT", delta="more"))),
        ),
    ),
    "a frame lost in each resumed stream": ("resumes", lambda: _loses_one(on_resume=True)),
    "a cancel that does nothing": (
        "foreign",
        lambda: _EveryoneIsTheOwner(_is_cancel),
    ),
    "a call that comes twice": ("once", lambda: typed("TOOL_CALL_START", doubled)),
    "a call without its end": ("spans", lambda: typed("TOOL_CALL_END", dropped)),
}
