"""Writing to a client's connection without a turn of its task: half the cost of an ASGI `send`.

The head and the end of a response, and whatever a connection does not take at once, go through
ASGI as usual. In between, the bytes of an event can go straight to the transport, framed as an
HTTP chunk once for all clients. That needs uvicorn's own objects, which are not public: so only the
versions are used with which it was tried, and anything else is served by plain ASGI.
"""

from __future__ import annotations

import uvicorn
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

TRIED = ("0.54.",)


class Direct:
    """The connection of one response whose head is sent, and whose body is chunked."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, chunk: bytes) -> bool:
        """An HTTP chunk, whole; False when the connection does not take it now."""
        cycle = self._cycle
        if (
            cycle.disconnected
            or cycle.response_complete
            or cycle.flow.write_paused
            or cycle.transport.is_closing()
        ):
            return False
        cycle.transport.write(chunk)
        return True

    def close_after(self) -> None:
        """The connection is closed with the end of the response: the next may go elsewhere."""
        self._cycle.keep_alive = False


def is_tried() -> bool:
    """True for a uvicorn whose objects are known."""
    return uvicorn.__version__.startswith(TRIED)


def direct_of(receive: Receive) -> Direct | None:
    """The connection behind a response under way; None where only ASGI will do."""
    # the one callable that no middleware wraps
    cycle = getattr(receive, "__self__", None)
    if is_tried() and isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
        return Direct(cycle)
    return None


def http_chunk(body: bytes) -> bytes:
    """The body as one chunk of a chunked response (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)
