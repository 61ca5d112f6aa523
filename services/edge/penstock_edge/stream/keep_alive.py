"""Decides when an idle stream gets a keep-alive. Pure.

Proxies close a connection on which no bytes are sent for some time. So the edge writes keep-alives
to an idle stream, so that the stream gets bytes at least once in `keep_alive_s` seconds. In SSE, a
keep-alive is a comment (`Framing.keep_alive`). WebSockets have pings in place of keep-alives
(`EdgeService.ws_ping_s`).

Each stream is checked several times in `keep_alive_s`. `Hubs.maintain` checks the streams of a
hub's clients. A stream that waits for its run to begin is checked by its response
(`WaitingStream`).
"""

from __future__ import annotations

from typing import Final

CHECKS_PER_KEEP_ALIVE: Final = 3  # the number of checks of one stream in `keep_alive_s`


def check_period_s(keep_alive_s: float) -> float:
    return keep_alive_s / CHECKS_PER_KEEP_ALIVE


def is_due(idle_s: float, period_s: float) -> bool:
    """Return whether a stream without bytes for `idle_s` needs a keep-alive at this check.

    The keep-alive is due one check before the end of `keep_alive_s`: the next may come too late.
    """
    return idle_s >= (CHECKS_PER_KEEP_ALIVE - 1) * period_s
