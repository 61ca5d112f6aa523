"""What an adapter to an agent server offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from penstock.bus.records import ContinueCommand, PauseRecord, StartCommand
from penstock.settings import AgentConfig
from penstock.sse import Frame


@dataclass(frozen=True, slots=True)
class Call:
    """The request that opens a leg, or comes back to it. `run_id` is the upstream's, if known."""

    url: str
    headers: Mapping[str, str]
    content: bytes
    run_id: str | None = None
    session_id: str = ""
    own: Any = None  # the adapter's, for when the leg is over
    method: str = "POST"
    produces_again: bool = False  # what was under way is made anew: another attempt


@dataclass(slots=True)
class Attachment:
    """What was seen of a leg's stream that helps to come back to it.

    A connector that takes the leg over fills it from RAW, by the same `watch`.
    """

    last_event_index: int | None = None
    last_id: str | None = None
    run_id: str | None = None  # the server's name for the run, as it told us
    over: bool = False  # the server has said its last word: a cut loses nothing any more
    says_when_over: bool = False  # a clean end without that word is a cut, too
    refusal: str | None = None  # why the server cannot go on with it
    notes: Any = None  # the adapter's own


class Upstream(Protocol):
    """One protocol. Stateless: what belongs to a leg is in its `Call` and its `Attachment`."""

    async def start(
        self, client: httpx.AsyncClient, agent: AgentConfig, command: StartCommand
    ) -> Call:
        """The request for leg 1, after whatever the server needs beforehand.

        The command's session is what the server calls it; here and in `resume`.

        Asked again by who takes the leg over, it gives the same. Raises httpx.HTTPError, or
        Refused with the server's words.
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

    def answered(self, headers: Mapping[str, str], seen: Attachment) -> None:
        """Note what the head of the server's answer tells about how to come back."""
        ...

    def watch(self, frame: Frame, seen: Attachment) -> None:
        """Note what a frame tells about that."""
        ...

    def outlives_us(self, seen: Attachment) -> bool:
        """Whether the run goes on when we close the connection, and is there for another one."""
        ...

    async def reattach(
        self, client: httpx.AsyncClient, agent: AgentConfig, call: Call, seen: Attachment
    ) -> Call | None:
        """The request that goes on with a stream that was cut; None when there is no safe way.

        Raises httpx.HTTPError when the server cannot be asked.
        """
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
