"""A replay reads stored messages from JetStream for one client, up to the ring of the client's hub.

A client needs a replay when its position is before the oldest item of the ring.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from penstock.bus import RETRY_S, BusError, Stored
from penstock.log_fields import run_of
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.history import History
from penstock_edge.stream.hub import Hub
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.items import Encoding, Item

log = logging.getLogger(__name__)

LAG_RETRY_S: Final = 0.05
LAG_TRIES: Final = 40
# a write of a replay ends with the item that brings the write to at least this number of bytes
PIECE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Reached:
    """The replay has reached the ring; `truncated` if messages before the ring are missing."""

    truncated: bool = False


class Replay:
    """Reads and encodes the messages from `start` to the ring's oldest item, for one client. It
    reads the next batch only after the client has taken the last one, so it has at most one in
    memory."""

    def __init__(self, hub: Hub, start: StreamSequence) -> None:
        self._hub = hub
        self._start = start
        self._history: History | None = None
        self._unencoded: list[Stored] = []  # newest first, so that `pop` returns the next message
        self._encoding: Encoding | None = None
        self._newest: Stored | None = None  # the newest message that was encoded
        self._lags = 0

    async def take(self, turn: Turn) -> tuple[Item, ...] | Reached:
        # The result is empty if this call found no items; the next call may find some.
        if self._encoding is None:
            if self._start >= self._hub.first_sequence:
                return Reached()
            self._encoding = self._hub.view.encoding()
        if not self._unencoded and not await self._read(turn):
            return ()
        if self._unencoded:
            return await self._encode(self._encoding)
        if self._hub.can_join(self._newest):
            return Reached()
        # Messages between the replay and the ring are missing. A replica that lags behind may get
        # the missing messages soon, so the read is repeated.
        if self._lags == LAG_TRIES:
            return Reached(truncated=True)
        self._lags += 1
        if self._history is not None:
            self._history.restart()
        await asyncio.sleep(LAG_RETRY_S)
        return ()

    async def _read(self, turn: Turn) -> bool:
        """Return False if a batch has no messages but the stream may have more."""
        if self._history is None:
            self._history = self._hub.history(self._start, turn)
        try:
            step = await self._history.step(self._hub.first_sequence)
        except BusError as error:
            view = self._hub.view
            text, extra = "%s cannot be read now; trying again: %s", run_of(view.run_id)
            log.warning(text, " ".join(view.key), error, extra=extra)
            await asyncio.sleep(RETRY_S)
            return False
        self._unencoded = step.kept[::-1]
        # A batch may have no message for this client. The result is then False. So the caller can
        # check, before the next batch is read, whether the client has left.
        return step.is_last or bool(step.kept)

    async def _encode(self, encoding: Encoding) -> tuple[Item, ...]:
        """Stop at `PIECE_BYTES`: the items for a client that does not read could else need much
        more memory."""
        self._lags = 0
        items: list[Item] = []
        size_bytes = 0
        while self._unencoded and size_bytes < PIECE_BYTES:
            self._newest = self._unencoded.pop()
            items.append(await self._hub.encode(encoding, self._newest))
            size_bytes += len(items[-1].body)
        return tuple(items)
