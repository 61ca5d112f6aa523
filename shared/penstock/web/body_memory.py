"""Bound the memory for the bodies of callers who are not authenticated.

Such callers may open any number of connections and leave each body unfinished. A body that is being
read counts with the bytes that have arrived. If there are too many bytes, the oldest unfinished
body is refused, and not the newest. A body of an honest caller is complete after some milliseconds,
so honest callers are served even while others leave bodies unfinished. This also holds if a proxy
in front makes all callers appear under one address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from penstock.telemetry import LIMITED
from penstock.web.problems import Problem

# The key of scope["state"] under which the router stores the `BodyMemory` for anonymous requests.
BODY_MEMORY: Final = "body_memory"
PROCESS_BYTES: Final = 64 * 1024 * 1024
ADDRESS_BYTES: Final = 32 * 1024 * 1024


class UnfinishedBody:
    """A body that is being read: its pieces so far, and the address of its sender."""

    def __init__(self, memory: BodyMemory, address: str, refusal: asyncio.Timeout) -> None:
        self._memory = memory
        self._refusal = refusal
        self.address = address
        self.size_bytes = 0
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size_bytes += len(piece)
        self._memory.count(self, len(piece))

    def content(self) -> bytes:
        return b"".join(self._pieces)

    def refuse(self) -> None:
        self.free()
        self._refusal.reschedule(0)

    def free(self) -> None:
        """Free the pieces. The frames of an exception may hold this object for some seconds, while
        the rest of a refused body is read."""
        self._pieces.clear()


class BodyMemory:
    """Counts the bytes of unfinished bodies, for the process and for each address.

    Beyond `address_bytes`, the address's oldest unfinished body is refused. Beyond `process_bytes`,
    this happens to the address with the most bytes.
    """

    def __init__(
        self, process_bytes: int = PROCESS_BYTES, address_bytes: int = ADDRESS_BYTES
    ) -> None:
        self._process_bytes = process_bytes
        self._address_bytes = min(address_bytes, process_bytes)
        self.size_bytes = 0
        # maps an address to its number of bytes and to its unfinished bodies, the oldest first
        self._sizes: dict[str, int] = {}
        self._bodies: dict[str, dict[UnfinishedBody, None]] = {}

    @asynccontextmanager
    async def reading(self, address: str) -> AsyncIterator[UnfinishedBody]:
        """Count a body while it is being read. Raises Problem 503 if the body is refused."""
        try:
            async with asyncio.timeout(None) as refusal:
                body = UnfinishedBody(self, address, refusal)
                self._bodies.setdefault(address, {})[body] = None
                try:
                    yield body
                finally:
                    self._forget(body)
                    body.free()
        except TimeoutError:
            raise Problem(
                503,
                "this server had too many unfinished bodies of callers who are not authenticated, "
                "and this one was the oldest: send the request again, and its body without a pause",
            ) from None

    def count(self, body: UnfinishedBody, size_bytes: int) -> None:
        """Count further bytes of a body, and refuse bodies until no limit is exceeded."""
        address = body.address
        if body not in self._bodies.get(address, ()):
            return  # this body was refused, but its task has not run since
        self.size_bytes += size_bytes
        self._sizes[address] = self._sizes.get(address, 0) + size_bytes
        while self._sizes.get(address, 0) > self._address_bytes:
            self._refuse_oldest(address)
        while self.size_bytes > self._process_bytes:
            self._refuse_oldest(max(self._sizes, key=self._sizes.__getitem__))

    def _refuse_oldest(self, address: str) -> None:
        oldest = next(each for each in self._bodies[address] if each.size_bytes)
        self._forget(oldest)
        oldest.refuse()
        LIMITED.labels("bodies").inc()

    def _forget(self, body: UnfinishedBody) -> None:
        of_address = self._bodies.get(body.address, {})
        if body not in of_address:
            return
        del of_address[body]
        self.size_bytes -= body.size_bytes
        rest_bytes = self._sizes.get(body.address, 0) - body.size_bytes
        self._sizes[body.address] = rest_bytes
        if not rest_bytes:
            del self._sizes[body.address]
        if not of_address:
            del self._bodies[body.address]
