"""Are the streams still those that we know? A broker that comes back may have lost its data.

What a process knows (the last sequences of its runs, how far it has read) is of the streams that
stood when it started. Over others it would number anew from the middle, and skip what it believes
to have read. So it asks after each reconnect, before anything else, and holds everything back
while they are not there, or are others: data may be put back, and to make half of the streams
anew, in silence, would hide the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from penstock.bus.errors import BusError

LOOK_AGAIN_S = 2.0
ASK_AGAIN_S = 0.25  # while nobody answers, as in an election


class Presence:
    """The streams that were found at start, by the time of their creation.

    `created` asks the server for that: None when there is no such stream; it raises BusError while
    nobody can tell. `found` is called as soon as one is known to be the same and none to be gone,
    `lost` with the reason when one is gone.
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
        """This one stands."""
        self._known[stream] = created

    async def check(self) -> None:
        """Look until every stream was seen to be the same."""
        unseen, gone = set(self._known), False
        if not unseen:
            self._found()  # who has not looked at the start has nothing to lose
        while unseen:
            looks = [asyncio.create_task(self._look(name, gone)) for name in sorted(unseen)]
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
                await asyncio.sleep(LOOK_AGAIN_S if gone else ASK_AGAIN_S)

    async def _look(self, name: str, gone: bool) -> str | None:
        """When it was made; empty when nobody can tell."""
        try:
            created = await self._created(name)
        except BusError:
            return ""
        if created == self._known[name] and not gone:
            self._found()
        return created


_MISSING = (
    "NATS has lost {}: nothing is sent or read until it is there again. Put the data back (a "
    "backup, the volume), or restart the services to begin with nothing: runs in flight are lost"
)
_OTHERS = (
    "{} was made anew since this service started, so that what it knows is of data that are lost. "
    "Restart it"
)


def _names(streams: Iterable[str]) -> str:
    return f"the streams {', '.join(sorted(streams))}"
