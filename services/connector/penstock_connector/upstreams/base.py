"""What an adapter to an agent server offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from penstock.bus.records import ContinueCommand, PauseRecord, StartCommand
from penstock.settings import AgentConfig


@dataclass(frozen=True, slots=True)
class Call:
    """The request that opens a leg. `run_id` is the upstream's, where it is known."""

    url: str
    headers: Mapping[str, str]
    content: bytes
    run_id: str | None = None
    session_id: str = ""
    own: Any = None  # the adapter's, for when the leg is over


@dataclass(slots=True)
class Attachment:
    """What was seen of the stream that helps to come back to it."""

    last_event_index: int | None = None
    notes: Any = None  # the adapter's own


class Upstream(Protocol):
    """One protocol. Stateless: what belongs to a leg is in its `Call`."""

    async def start(
        self, client: httpx.AsyncClient, agent: AgentConfig, command: StartCommand
    ) -> Call:
        """The request for leg 1, after whatever the server needs beforehand.

        Raises httpx.HTTPError, or Refused with the server's words.
        """
        ...

    async def resume(
        self,
        client: httpx.AsyncClient,
        agent: AgentConfig,
        command: ContinueCommand,
        pause: PauseRecord,
    ) -> Call:
        """The request that carries a decision: the stored objects, never the decider's."""
        ...

    async def cancel(self, client: httpx.AsyncClient, agent: AgentConfig, call: Call) -> bool:
        """Ask the server to stop; False when closing the connection is the way."""
        ...

    def watch(self, data: bytes, seen: Attachment) -> None:
        """Note what a frame's data tells about how to come back."""
        ...

    def reattach(self, agent: AgentConfig, call: Call, seen: Attachment) -> Call | None:
        """The request that goes on with a stream that was cut; None when there is no way."""
        ...

    async def closed(self, agent: AgentConfig, call: Call, seen: Attachment) -> None:
        """The leg's stream is over, however it ended; nobody was told yet."""
        ...


class Refused(Exception):
    """The server answered with an error status before the stream began."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(f"the upstream answered {status_code}: {detail[:500]}")
        self.status_code = status_code
        self.detail = detail


def segment(text: str) -> str:
    """A foreign id as one segment of a URL's path: `..` must not lead out of it."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
