"""The interface of an adapter to a kind of agent server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx

from penstock.bus.records import ContinueCommand, PauseRecord, StartCommand
from penstock.settings import AgentOfServer
from penstock.sse import Frame


@dataclass(frozen=True, slots=True)
class Call:
    """The request that opens a leg or reattaches to it. `run_id`: the upstream's id of the run."""

    url: str
    headers: Mapping[str, str]
    content: bytes
    run_id: str | None = None
    session_id: str = ""
    own: Any = None  # the adapter's own data, which `closed` gets back
    method: str = "POST"
    produces_again: bool = False  # the server produces again what was under way: a new attempt


@dataclass(slots=True)
class Attachment:
    """What the adapter has noted of a leg's stream, to reattach to the stream.

    A connector that takes the leg over reads the frames from RAW, and calls the same `watch`.
    """

    last_event_index: int | None = None
    last_id: str | None = None
    run_id: str | None = None  # the server's id of the run, where it gave one
    over: bool = False  # the run's last event has come, so a cut loses nothing
    says_when_over: bool = False  # a clean end without the run's last event is a cut, too
    refusal: str | None = None  # why the server cannot continue the stream
    notes: Any = None  # the adapter's own


AgentT_contra = TypeVar("AgentT_contra", bound=AgentOfServer, contravariant=True)


class Upstream(Protocol[AgentT_contra]):
    """The adapter for one protocol. A leg's state is in its `Call` and its `Attachment`."""

    async def start(
        self, client: httpx.AsyncClient, agent: AgentT_contra, command: StartCommand
    ) -> Call:
        """Do what the server needs before a run, and return the request for leg 1.

        Here and in `resume`, the command's `session_id` is the id that the server uses. A connector
        that takes the leg over calls this method again, and gets the same request.

        Raises:
            httpx.HTTPError: the server cannot be reached.
            UpstreamRefused: the server answered with an error.
        """
        ...

    async def resume(
        self,
        client: httpx.AsyncClient,
        agent: AgentT_contra,
        command: ContinueCommand,
        pause: PauseRecord,
    ) -> Call:
        """The request that carries a decision, made of the stored objects, not of the caller's."""
        ...

    async def cancel(self, client: httpx.AsyncClient, agent: AgentT_contra, call: Call) -> bool:
        """Ask the server to stop; False if only closing the connection stops the run."""
        ...

    def answered(self, headers: Mapping[str, str], seen: Attachment) -> None:
        """Keep in `seen` the facts from the response's headers that `reattach` needs."""
        ...

    def watch(self, frame: Frame, seen: Attachment) -> None:
        """Keep in `seen` the facts from a frame that `reattach` needs."""
        ...

    def outlives_us(self, seen: Attachment) -> bool:
        """Whether the run continues after the connection is closed, so that `reattach` can work."""
        ...

    async def reattach(
        self, client: httpx.AsyncClient, agent: AgentT_contra, call: Call, seen: Attachment
    ) -> Call | None:
        """The request that continues a stream that was cut; None when there is no safe way.

        Raises:
            httpx.HTTPError: the server cannot be reached.
            UpstreamRefused: the server answered with an error.
        """
        ...

    async def closed(self, agent: AgentT_contra, call: Call, seen: Attachment) -> None:
        """Keep what later legs need. The leg's last source frame is not written yet."""
        ...


class UpstreamRefused(Exception):
    """The server answered with an error status before the stream began."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(f"the upstream answered {status_code}: {detail[:500]}")
        self.status_code = status_code
        self.detail = detail


def segment(text: str) -> str:
    """Quote a foreign id as a segment of a URL's path. Unquoted, `..` would leave the path."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
