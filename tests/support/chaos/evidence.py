"""The data that a round leaves behind: of each run, and of the system. `gather` collects it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from support.chaos.plans import Plan
from support.chaos.recorder import Exchange

Request = Literal["start", "continue", "resume"]
RUN_ID_CHARACTERS = 36  # the length of a UUID


class Late(str):
    """A sentence about something that did not happen in time."""


@dataclass(frozen=True, slots=True)
class RawFrame:
    """One message of RAW."""

    writer: str
    kind: str
    leg: int
    connection: str
    payload: bytes
    stored_at: float = 0.0  # in seconds since 1970, by the broker's clock


@dataclass(slots=True)
class View:
    """What one client saw over all its connections."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    cursors: list[str] = field(default_factory=list)
    connections: int = 0
    odd: list[str] = field(default_factory=list)  # things that no client should meet
    finished: bool = False  # the client saw the end, or the event that it waited for
    restarts: int = 0  # how often the edge told the client that its cursor is lost

    def begins_anew(self) -> None:
        """Forget the cursor, so that the client reads again from the run's first event."""
        self.restarts += 1
        self.seen.clear()
        self.cursors.clear()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a client's request. The status is None if the answer was lost."""

    asked: str
    status: int | None


@dataclass(slots=True)
class Evidence:
    """What the round left of one run."""

    plan: Plan
    run_id: str
    bodies: list[bytes] = field(default_factory=list)  # of the events in EVENTS, in order
    folded: list[bytes] = field(default_factory=list)  # of the events of a fresh fold of RAW
    frames: list[RawFrame] = field(default_factory=list)  # in RAW, in order
    exchanges: list[tuple[Request, Exchange]] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    decisions: list[Answer] = field(default_factory=list)
    cancels: list[Answer] = field(default_factory=list)
    other_ids: set[str] = field(default_factory=set)  # other ids that the same key got
    tool_runs: int = 0
    status: str = ""  # the run's status in the list of runs
    loses: frozenset[str] = frozenset()  # streams that may have lost messages of this run
    # The ids of the webhooks that came about the run, in order; None in a round without rules.
    requests: list[str] | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def asked(self) -> list[list[Exchange]]:
        """Return the exchanges of each leg: the request that opened it, and later reconnects."""
        legs: list[list[Exchange]] = []
        for request, exchange in self.exchanges:
            if request != "resume" or not legs:
                legs.append([])
            legs[-1].append(exchange)
        return legs

    @property
    def written(self) -> dict[int, dict[str, bytes]]:
        """Return the bytes in RAW by leg and connection."""
        legs: dict[int, dict[str, bytes]] = {}
        for frame in self.frames:
            connections = legs.setdefault(frame.leg, {})
            if frame.writer == "upstream" and frame.kind in ("bytes", "part"):
                connections[frame.connection] = (
                    connections.get(frame.connection, b"") + frame.payload
                )
        return legs


@dataclass(frozen=True, slots=True)
class Processes:
    """The services' processes: the ids of those that run, and a line for each unexpected end."""

    alive: frozenset[int]
    exits: Sequence[str]


@dataclass(slots=True)
class Remains:
    """What is left in the system when all runs are over."""

    commands: list[str] = field(default_factory=list)
    dead_letters: list[str] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)  # of processes that have ended
    claims: list[str] = field(default_factory=list)  # legs that a connector still holds
    queues: list[str] = field(default_factory=list)  # sessions in which a run still waits
    outbox: list[str] = field(default_factory=list)  # decisions that were not passed on
    deliveries: list[str] = field(default_factory=list)  # jobs of automations
    strangers: list[str] = field(default_factory=list)  # runs that no client asked for
    exits: list[str] = field(default_factory=list)  # processes that ended without a fault
    refused: list[str] = field(default_factory=list)  # operations that NATS refused to services


def request_of(exchange: Exchange) -> tuple[Request, str] | None:
    """Return the kind of the request, and the run id or text that names the run upstream.

    Return None for a request about no run.
    """
    path = unquote(urlsplit(exchange.path).path)
    if exchange.method != "POST":
        return None
    match path.strip("/").split("/"):
        case ["agents", _, "runs"]:
            return "start", parse_qs(exchange.request.decode())["run_id"][0]
        case ["agents", _, "runs", run_id, ("continue" | "resume") as request]:
            return ("continue" if request == "continue" else "resume"), run_id
        case ["run_sse"]:
            return _request_of_adk(json.loads(exchange.request))
        case [_]:
            return _request_of_agui(json.loads(exchange.request))
    return None


def _request_of_agui(body: dict[str, Any]) -> tuple[Request, str] | None:
    """A later leg has the run's id, followed by the number of the leg."""
    run_id = body.get("runId")
    if not isinstance(run_id, str):
        return None
    is_first = len(run_id) == RUN_ID_CHARACTERS
    return "start" if is_first else "continue", run_id[:RUN_ID_CHARACTERS]


def _request_of_adk(body: dict[str, Any]) -> tuple[Request, str]:
    message = body.get("newMessage")
    if message is None:  # a request that names its invocation alone
        return "resume", str(body["sessionId"])
    if "functionResponse" in json.dumps(message):
        return "continue", str(body["sessionId"])
    return "start", str(message["parts"][0]["text"])


def exchanges_of(
    plan: Plan, run_id: str, exchanges: Iterable[Exchange]
) -> list[tuple[Request, Exchange]]:
    """Return the exchanges of one run, in the order of their requests."""
    # Agno and AG-UI requests have our run id. An ADK start has the run's text, and all other ADK
    # requests have its session.
    names = {run_id} if plan.agent in ("agno", "agui") else {plan.message}
    if plan.agent == "resumable" or (plan.agent == "adk" and plan.decision is not None):
        names.add(plan.session_id)
    found = []
    for exchange in exchanges:
        asked = request_of(exchange)
        if asked is not None and asked[1] in names:
            found.append((asked[0], exchange))
    return found


def told(run: Evidence, found: Iterable[str]) -> str:
    """Describe one run: what is wrong, its events, its source frames and its requests."""
    lines = [*found, "", f"plan: {run.plan}", f"listed as {run.status}", "", "events:"]
    lines += [body.decode() for body in run.bodies]
    lines += ["", f"a fold of RAW makes {len(run.folded)}, of which are not there:"]
    lines += [body.decode() for body in run.folded if body not in run.bodies]
    lines += ["", "source frames:"]
    lines += [
        f"{frame.stored_at:.3f} leg {frame.leg} {frame.kind} {frame.connection} "
        f"{frame.payload[:200]!r}"
        for frame in run.frames
    ]
    lines += ["", "requests to the agent server:"]
    lines += [
        f"{request} {each.path} {each.ended} {len(each.body)} bytes, "
        f"last {bytes(each.body[-200:])!r}"
        for request, each in run.exchanges
    ]
    lines += ["", "clients:"]
    lines += [
        f"{view.connections} connections, {view.restarts} restarts, finished: {view.finished}, "
        f"saw {[event.get('sequence') for event in view.seen]}, odd: {view.odd}"
        for view in run.views
    ]
    lines += [f"decisions: {run.decisions}", f"cancels: {run.cancels}"]
    return "\n".join(lines) + "\n"
