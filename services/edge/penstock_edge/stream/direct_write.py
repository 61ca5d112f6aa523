"""Writes an event to a client's transport without waking its task: half the cost of ASGI's `send`.

The head and the end of a response, and all writes that a connection does not take at once, go
through ASGI. In between, an event is framed as an HTTP chunk once for all clients, and goes to the
transport directly. This needs objects of uvicorn that are not public. So it is used only with the
versions in `TRIED`, and any other version is served by ASGI alone.
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
        """Write an HTTP chunk; False if the connection does not take it now."""
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
        """Close the connection after the response, so that the next one may reach another edge."""
        self._cycle.keep_alive = False


def is_tried() -> bool:
    """Whether this version of uvicorn is one of `TRIED`."""
    return uvicorn.__version__.startswith(TRIED)


def direct_of(receive: Receive) -> Direct | None:
    """The connection of a response whose head is sent; None if ASGI must be used."""
    # Middleware wraps `send`, but not `receive`.
    cycle = getattr(receive, "__self__", None)
    if is_tried() and isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
        return Direct(cycle)
    return None


def http_chunk(body: bytes) -> bytes:
    """The body as one chunk of a chunked response (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)
