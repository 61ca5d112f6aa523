"""Defines the interface of the adapters to agent servers."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import quote

import httpx

from penstock.bus.records.approvals import ContinueCommand
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand
from penstock.bus.subjects import session_key
from penstock.settings import AgentOfServer, ServerAgent
from penstock.sse import Frame

BUDGET: Final = "budget"  # the kind of a pause that a budget has made
GO_ON: Final = (
    "You were stopped because a budget was used up, and may go on now. Go on with this request "
    "where you were stopped; do not repeat what is done."
)


@dataclass(frozen=True, slots=True)
class Call:
    """The request that opens a leg or reattaches to it; `run_id` is the agent server's."""

    url: str
    headers: Mapping[str, str]
    content: bytes
    run_id: str | None = None
    session_id: str = ""
    own: Any = None  # the adapter's own data, for its methods that get this call later
    method: str = "POST"
    traceparent: str | None = None  # the trace context of the leg
    # whether the server produces the unfinished part of the response again, in a new attempt
    produces_again: bool = False


@dataclass(slots=True)
class ReattachState:
    """The facts of a leg's stream that the adapter needs to reattach to the stream. A connector
    that takes the leg over reads the frames from RAW, with the same `watch`."""

    # the number of the last event, if the server numbers events
    last_event_index: int | None = None
    last_id: str | None = None  # the SSE id of the last frame that had an id
    run_id: str | None = None  # the agent server's id of the run; None if it is unknown
    # whether the run's last event was received, so that a cut loses nothing
    has_final_event: bool = False
    # whether the stream always ends with the run's last event, so that any other end is a cut
    has_final_events: bool = False
    refusal: str | None = None  # the reason why the server cannot continue the stream
    notes: Any = None  # the adapter's own data


class CancelAnswer(Enum):
    """The result of asking an agent server to cancel a run. Only the first three stop the run;
    after `ACCEPTED`, the end of the stream confirms it."""

    NOT_CALLED = "not called"  # the server never got the leg's request
    BY_CLOSING = "by closing"  # the protocol has no cancel: closing the connection is the cancel
    ACCEPTED = "accepted"  # the server accepted the cancel, and will end the stream
    REFUSED = "refused"  # the server answered with an error, or has no such endpoint
    NO_ANSWER = "no answer"  # nobody knows whether the server got the cancel


AgentT_contra = TypeVar("AgentT_contra", bound=AgentOfServer, contravariant=True)


class Upstream(ABC, Generic[AgentT_contra]):
    """The adapter for one protocol, whose methods are without state.

    The state of a leg is in the leg's `Call` and `ReattachState`. The methods that ask the server
    raise httpx.HTTPError if it does not answer, and UpstreamRefused if it answers with an error.
    """

    # whether the adapter stores the requests that later legs repeat
    stores_requests: ClassVar[bool] = False
    # whether a paused run may hold up its whole thread (see `session_queue.require_at_rest`)
    pauses_thread: ClassVar[bool] = False

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    def refuses_starts_while_paused(self, agent: AgentT_contra) -> bool:
        """Return whether a start must not be sent while a run of its session is paused."""
        return False

    def facts_of_open(self, agent: AgentT_contra, command: StartCommand) -> dict[str, Any]:
        """Return the facts that only this protocol's decoder needs, for the run's `open`."""
        return {}

    @abstractmethod
    async def start(self, agent: AgentT_contra, command: StartCommand) -> Call:
        """Do the preparations that the server needs before a run, and return the request for leg 1.

        In this method and in `resume`, the command's `session_id` is the server's id of the
        session. A connector that takes the leg over calls this method again, and gets the same
        request.
        """

    @abstractmethod
    async def resume(
        self, agent: AgentT_contra, command: ContinueCommand, pause: PauseRecord
    ) -> Call:
        """Return the request that carries a decision, made with the stored objects of the pause."""

    async def cancel(self, agent: AgentT_contra, call: Call) -> CancelAnswer:
        """Ask the server to stop. Some protocols have no request for it but a closed connection."""
        return CancelAnswer.BY_CLOSING

    def answered(self, headers: Mapping[str, str], seen: ReattachState) -> None:
        """Store in `seen` the facts from the response's headers that `reattach` needs."""
        return

    @abstractmethod
    def watch(self, frame: Frame, seen: ReattachState) -> None:
        """Store in `seen` the facts from a frame that `reattach` needs."""

    def survives_disconnect(self, seen: ReattachState) -> bool:
        """Return whether the run continues without the connection, so that `reattach` can work."""
        return False

    @abstractmethod
    async def reattach(self, agent: AgentT_contra, call: Call, seen: ReattachState) -> Call | None:
        """Return the request that continues a cut stream; None if there is no safe request."""

    async def closed(self, agent: AgentT_contra, call: Call, seen: ReattachState) -> None:
        """Store the data that later legs need; the leg's last source frame is not written yet."""
        return


def stopped_for_budget(pause: PauseRecord) -> str | None:
    """Return the message with which a run goes on that a budget had stopped; None for a pause of
    the agent server.

    No protocol can continue a run that was cancelled. So the leg asks the agent again, in the same
    session: what the agent knows of its earlier work is what its session keeps. `pause.resume` has
    the start's `input`, which the server must get again.
    """
    if pause.resume.get("kind") != BUDGET:
        return None
    message = pause.fold.get("facts", {}).get("message") or ""
    return f"{GO_ON}\n\n{message}".rstrip()


class UpstreamRefused(Exception):
    """The server answered with an error status before the stream began."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(f"the upstream answered {status_code}: {detail[:500]}")
        self.status_code = status_code
        self.detail = detail


def leg_key(run_id: str, leg: int) -> str:
    """Return the key that tells a leg from every other one: all requests of a leg have the same
    key, so that a tool can refuse a second effect."""
    return f"{run_id}-{leg}"


def segment(text: str) -> str:
    """Quote an id from outside as one segment of a URL's path; `..` cannot leave the path."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def thread_id(
    agent: ServerAgent, command: StartCommand | ContinueCommand, *, callers_known: bool
) -> str:
    """Return the id that a new session has at its agent server. Pure.

    Some servers do not check users: any caller who knows the id of a thread can use the thread. So
    if callers are authenticated, the id is made of owner, agent and session. A client chooses only
    the session, so no client can name another user's thread. `callers_known` counts for a command
    without this field.
    """
    of_command = getattr(command, "callers_known", None)
    known = callers_known if of_command is None else of_command
    if not known or agent.thread_ids == "verbatim":
        return command.session_id
    key = session_key(command.user_id, agent.id, command.session_id)
    return str(uuid.UUID(hex=key[:32], version=5))
