"""Checks whether the streams are the same as at the start, since NATS may restart without data.

A process knows sequences of the streams that existed when the process started, such as the last
sequences of its runs. With new streams of the same names, these sequences are wrong: the process
would count on from a sequence of the old stream, and would skip messages of the new stream that it
has not read. So the process compares the streams after each reconnect, before any other request.
While a stream is missing or was made anew, the process sends no other request. The process makes no
missing stream itself: an operator may still restore the data, and a new empty stream would hide the
loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from penstock.bus.connection.retry import RETRY_S
from penstock.bus.errors import BusError

CHECK_AGAIN_S = 2.0  # seconds between two comparisons while a stream is missing or was made anew
_NAMED = 3  # the most names in one message, because a server without data lacks all streams

_MISSING = (
    "NATS has lost {}: nothing is sent or read until they are there again. Restore the data (a "
    "backup, the volume), or restart the services to begin with nothing: runs in flight are lost"
)
_OTHERS = (
    "{} was made anew since this service started: the sequences that this service knows belong to "
    "data that are lost. Restart it"
)


class StreamIdentity:
    """Remembers when the streams at the start were created, and compares these times later.

    `created` returns a stream's time of creation, or None when there is no such stream; `created`
    raises BusError while the server does not answer. `found` is called as soon as one stream is
    known to be the same and no stream is missing. `lost` is called with the reason when a stream is
    missing or was made anew.
    """

    def __init__(
        self,
        created: Callable[[str], Awaitable[str | None]],
        found: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self._created = created
        self._found = found
        self._lost = lost
        self._known: dict[str, str] = {}

    def know(self, stream: str, created: str) -> None:
        self._known[stream] = created

    def remembers(self, stream: str) -> bool:
        return stream in self._known

    async def check(self) -> None:
        """Compare the streams until every stream is known to be the same."""
        unseen, gone = set(self._known), False
        if not unseen:
            self._found()  # a process that remembers no streams has nothing to compare
        while unseen:
            looks = [asyncio.create_task(self._created_at(name, gone)) for name in sorted(unseen)]
            try:
                answers = dict(zip(sorted(unseen), await asyncio.gather(*looks), strict=True))
            finally:
                for look in looks:
                    look.cancel()
            unseen = {name for name, created in answers.items() if created != self._known[name]}
            missing = [name for name, created in answers.items() if created is None]
            others = [name for name in unseen if answers[name]]
            gone = bool(missing or others)
            if others:
                self._lost(_OTHERS.format(_names(others)))
            elif missing:
                self._lost(_MISSING.format(_names(missing)))
            elif len(unseen) < len(answers):
                self._found()
            if unseen:
                await asyncio.sleep(CHECK_AGAIN_S if gone else RETRY_S)

    async def _created_at(self, name: str, gone: bool) -> str | None:
        """Return a stream's time of creation; None without such a stream, empty without an answer.

        Calls `found` when the stream is the same, unless the last comparison found a missing or new
        stream (`gone`).
        """
        try:
            created = await self._created(name)
        except BusError:
            return ""
        if created == self._known[name] and not gone:
            self._found()
        return created


def _names(streams: Iterable[str]) -> str:
    names = sorted(streams)
    rest = len(names) - _NAMED
    if rest <= 1:
        return f"the streams {', '.join(names)}"
    return f"the streams {', '.join(names[:_NAMED])} and {rest} others"
