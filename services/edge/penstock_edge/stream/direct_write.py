"""Writes events directly to a client's transport, at half the cost of ASGI's `send`.

A direct write does not wake the task of the response. ASGI writes the head and the end of a
response, and all bytes that a connection does not accept at once. Between the head and the end, an
event is framed as an HTTP chunk once for all clients, and each client's transport gets this chunk
directly. Direct writes need objects of uvicorn that are not public. So direct writes are used only
with the versions in `TRIED`. With any other version, ASGI writes all bytes.
"""

from __future__ import annotations

import uvicorn
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

TRIED = ("0.54.",)


class Direct:
    """The connection of one chunked response whose head has been sent."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, chunk: bytes) -> bool:
        """Write an HTTP chunk; return False if the connection does not accept the chunk now."""
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
        """Close the connection after the response.

        The client's next request then opens a new connection, which may reach another edge.
        """
        self._cycle.keep_alive = False


def is_tried() -> bool:
    """Return whether this version of uvicorn is one of `TRIED`."""
    return uvicorn.__version__.startswith(TRIED)


def direct_of(receive: Receive) -> Direct | None:
    """Return the connection of a response whose head has been sent; None if ASGI must be used."""
    # Middleware wraps `send`, but not `receive`. So `receive` is a method of uvicorn's own object.
    cycle = getattr(receive, "__self__", None)
    if is_tried() and isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
        return Direct(cycle)
    return None


def http_chunk(body: bytes) -> bytes:
    """Frame the body as one chunk of a chunked response (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)
