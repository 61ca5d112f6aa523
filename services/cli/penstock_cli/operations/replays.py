"""Serves stored runs as a fake agent server, in the protocol of the server that they came from."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from penstock.bus import Bus
from penstock.bus.messages import RawFrame, raw_frame
from penstock.bus.read.direct import read
from penstock.bus.streams import raw_for
from penstock.bus.subjects import raw_of_run
from penstock.web.bodies import read_body
from penstock.web.operation import Answer, Operation, in_path, routes_of, serves
from penstock.web.problems import Problem
from penstock.web.server import Server

PROTOCOLS: Final = ("agno", "adk", "agui")
# The names of the conversation in the bodies of the three protocols.
_CONVERSATION: Final = ("session_id", "sessionId", "threadId")
_CONTINUE: Final = re.compile(r"/runs/([^/]+)/continue$")
_any = partial(
    Operation,
    path="/{path:path}",
    tag="replays",
    scopes=(),
    public=True,
    published=False,
    parameters=(in_path("path", "Any path of the agent server"),),
)


class NoReplay(Exception):
    """The run cannot be served. The text says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a response body, and how long after the piece before it came."""

    after_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """A stored run: the response bodies of its legs, in order."""

    run_id: str
    agent: str
    protocol: str
    legs: Sequence[Sequence[Piece]]


async def recorded(bus: Bus, run_id: str) -> Recording:
    """Read the source frames of a run.

    Raises NoReplay if they are no longer kept, or did not come from an agent server.
    """
    frames: list[RawFrame] = []
    start, more = 1, 1
    while more:
        found, more = await read(bus, raw_for(run_id), raw_of_run(run_id), start)
        if not found:
            break
        frames += map(raw_frame, found)
        start = found[-1].sequence + 1
    opened = b"".join(frame.payload for frame in frames if frame.opens_run)
    facts = orjson.loads(opened) if opened else {}
    if facts.get("protocol") not in PROTOCOLS:
        raise NoReplay(
            f"run {run_id} is a workflow's: name the runs of its steps"
            if facts
            else f"the source frames of run {run_id} are not kept (they are kept for a day)"
        )
    return Recording(run_id, facts["agent"], facts["protocol"], _legs(frames))


def _legs(frames: Sequence[RawFrame]) -> list[list[Piece]]:
    legs: defaultdict[int, list[Piece]] = defaultdict(list)
    before = datetime.fromisoformat(frames[0].received)
    for frame in frames:
        at = datetime.fromisoformat(frame.received)
        if frame.is_body:
            # The time in which a person decided is no part of the server's answer.
            waited_s = (at - before).total_seconds() if legs[frame.leg] else 0.0
            legs[frame.leg].append(Piece(max(waited_s, 0.0), frame.payload))
        before = at
    return [legs[number] for number in sorted(legs)]


@dataclass(slots=True)
class Replays:
    """Answers as the agent server did. A conversation begins with the next run of its protocol, in
    the order in which they were named, and each further request in it gets the next leg. A run of
    Agno is continued by its own id, so it can be replayed by one client at a time."""

    recordings: Sequence[Recording]
    speed: float  # how many times faster than recorded; 0: without pauses
    _begun: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _places: dict[str, tuple[Recording, int]] = field(default_factory=dict)

    @serves(_any(method="GET", summary="A session of ADK", answers={200: Answer("A session")}))
    async def session(self, request: Request) -> Response:
        path = request.path_params["path"]
        if not path.startswith("apps/"):
            raise Problem(404, "this server has only stored runs")
        return JSONResponse({"id": path.rsplit("/", 1)[-1], "state": {}, "events": []})

    @serves(
        _any(
            method="POST",
            summary="A leg",
            answers={200: Answer("The stored bytes", {"text/event-stream": {"type": "string"}})},
            body={"type": "object"},
            refusals=(404,),
        )
    )
    async def leg(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path.startswith("apps/"):
            return JSONResponse({"id": path.rsplit("/", 1)[-1], "state": {}, "events": []})
        if path.endswith("/cancel"):
            raise Problem(404, "a stored run cannot be cancelled")
        pieces = self._next(path, _conversation(await read_body(request)))
        return StreamingResponse(self._paced(pieces), media_type="text/event-stream")

    def _next(self, path: str, conversation: str) -> Sequence[Piece]:
        # A continue of Agno has the id and the session of the stored run, as its frames have.
        continued = _CONTINUE.search(path)
        recording, leg = self._places.get(continued[1] if continued else conversation, (None, 0))
        if recording is None or leg >= len(recording.legs):
            if continued:
                raise Problem(404, f"no stored run waits as run {continued[1]}")
            recording, leg = self._other(_protocol(path)), 0
        for name in (conversation, recording.run_id):
            self._places[name] = recording, leg + 1
        return recording.legs[leg]

    def _other(self, protocol: str) -> Recording:
        known = [each for each in self.recordings if each.protocol == protocol]
        if not known:
            raise Problem(404, f"none of the stored runs speaks {protocol}")
        number = self._begun[protocol]
        self._begun[protocol] += 1
        return known[number % len(known)]

    async def _paced(self, pieces: Sequence[Piece]) -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(piece.after_s / self.speed if self.speed else 0)
            yield piece.data


def _protocol(path: str) -> str:
    if path == "run_sse":
        return "adk"
    return "agno" if path.split("/", 1)[0] in ("agents", "teams", "workflows") else "agui"


def _conversation(body: bytes) -> str:
    """Return the id of the conversation in the body, which is JSON or a form."""
    try:
        fields: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
    if not isinstance(fields, dict):
        return ""
    return next((str(fields[name]) for name in _CONVERSATION if fields.get(name)), "")


def server(replays: Replays, port: int) -> Server:
    return Server(routes_of(replays), "127.0.0.1", port)
