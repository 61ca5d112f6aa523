"""Who is dead: a killed process is found within a second, long before its lease runs out.

NATS drops the subscriptions of a killed process at once. So each member of a group answers requests
to `alive.<its name>`, and the others ask. Only "no responders" counts as a sign of death. A process
that hangs or is busy keeps its subscription and merely does not answer: its lease decides, as ever.

A member that is found dead loses its lease: whoever found it deletes the key, by compare-and-set on
the revision that it knows. So everybody learns of it by watching the leases, and someone on the
smaller side of a divided cluster, who sees nobody, can harm nobody either.

A living process has no responders, too, while its connection is cut. It is there again after about
half a second. Therefore:

- one answer of "no responders" is not enough, and `confirm_s` makes it longer where a wrong guess
  would cost something;
- nobody is judged for `CALM_S` after our own connection came back, since all others may be coming
  back, too;
- nobody is found dead for `NODE_LOST_S` after the cluster has lost a server, where a wrong guess
  costs something: a member may be connected to just that one, and leave it only after ten seconds.

Each member asks the `SUCCESSORS` next ones in the order of their names, twice a second. So the work
of each is the same however many there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from penstock.bus.errors import BusError
from penstock.bus.subjects import alive

if TYPE_CHECKING:
    from penstock.bus.bus import Bus
    from penstock.bus.read.direct import Stored

log = logging.getLogger(__name__)

ANSWERS = "Penstock-Answers"  # header of a lease: its holder answers requests to `alive.<holder>`

ASK_S = 0.5
TIMES = 2  # so often in a row nobody must be there
SUCCESSORS = 3
CALM_S = 1.0
NODE_LOST_S = 15.0  # as long as a connector's lease


async def _nothing(pod: str) -> None:
    pass


class Peers:
    """The members of one group, and whether their processes are there.

    `prefix` is what their lease keys begin with (`pod.`); the rest of a key is the member's name.
    `on_gone` is awaited when nobody was there `TIMES` times in a row, `on_dead` when that has
    lasted for `confirm_s` more and the member's lease is deleted. Both may come again for a
    member that came back meanwhile.
    """

    def __init__(
        self,
        bus: Bus,
        prefix: str,
        me: str,
        *,
        on_dead: Callable[[str], Awaitable[None]] = _nothing,
        on_gone: Callable[[str], Awaitable[None]] = _nothing,
        confirm_s: float = 0.0,
    ) -> None:
        self._bus = bus
        self._leases = bus.bucket("leases")
        self._prefix = prefix
        self._subject = f"$KV.leases.{prefix}"
        self._me = me
        self._on_dead = on_dead
        self._on_gone = on_gone
        self._confirm_s = confirm_s
        self._times_to_confirm = TIMES + round(confirm_s / ASK_S)
        self._revisions: dict[str, int] = {}  # of the leases of those that answer
        self._suspects: set[str] = set()  # who has no lease, and left something
        self._absent: dict[str, int] = {}  # how often in a row nobody was there
        self._dead: set[str] = set()
        self._answering: Subscription | None = None

    async def answer(self) -> None:
        """Answer whoever asks for us. Before our lease is taken: others ask as soon as they see it.

        Raises BusUnavailable.
        """
        if self._answering is None:
            self._answering = await self._bus.subscribe(alive(self._me), self._here)

    def saw(self, stored: Stored) -> None:
        """What the bucket `leases` says of a member now: to be called with every message of it."""
        name = stored.subject.removeprefix(self._subject)
        if name == self._me or not stored.subject.startswith(self._subject):
            return
        if stored.payload:
            self._dead.discard(name)
            self._suspects.discard(name)
        if stored.payload and ANSWERS in stored.headers:
            self._revisions[name] = stored.sequence
        else:
            # it has left, or is of a version that does not answer
            self._revisions.pop(name, None)
            if name not in self._suspects:
                self._absent.pop(name, None)

    def suspect(self, names: Iterable[str]) -> None:
        """Ask also for these, which have no lease."""
        self._suspects |= set(names) - self._revisions.keys() - self._dead - {self._me}

    def is_gone(self, name: str) -> bool:
        """Whether nobody was there when it was asked last, twice or more; it may come back."""
        return name in self._dead or self._absent.get(name, 0) >= TIMES

    def is_dead(self, name: str) -> bool:
        """Whether it was found dead, and has not come back since."""
        return name in self._dead

    async def run(self) -> None:
        """Ask until cancelled."""
        await self.answer()
        while True:
            await asyncio.sleep(ASK_S)
            if self._bus.calm_s >= CALM_S:
                await asyncio.gather(*map(self._ask, self._whom()))
            else:
                self._absent.clear()

    def _whom(self) -> set[str]:
        """The next ones in the order of names; who is absent is asked for until that is settled."""
        known = sorted(self._revisions)
        after = [name for name in known if name > self._me] + [
            name for name in known if name < self._me
        ]
        present = [name for name in after if name not in self._absent]
        absent = self._absent.keys() & (self._revisions.keys() | self._suspects)
        return {*present[:SUCCESSORS], *absent, *self._suspects}

    async def _ask(self, name: str) -> None:
        try:
            await self._bus.client.request(alive(name), timeout=ASK_S)
        except NoRespondersError:
            await self._nobody(name)
        except NatsError:
            self._absent.pop(name, None)  # it hangs, or we are cut off ourselves
        else:
            self._absent.pop(name, None)
            self._suspects.discard(name)

    async def _nobody(self, name: str) -> None:
        times = self._absent[name] = self._absent.get(name, 0) + 1
        if times == TIMES:
            await self._on_gone(name)
        may_be_elsewhere = self._confirm_s > 0 and self._bus.cluster_whole_s < NODE_LOST_S
        if times >= self._times_to_confirm and not may_be_elsewhere:
            await self._bury(name)

    async def _bury(self, name: str) -> None:
        revision = self._revisions.get(name)
        try:
            if revision is not None and not await self._leases.delete(
                self._prefix + name, revision
            ):
                self._absent.pop(name, None)  # it has been renewed since, or somebody was first
                return
        except BusError as error:
            log.warning("%s does not answer; its lease cannot be deleted yet: %s", name, error)
            return
        log.warning("%s is dead: nobody answers for it", name)
        self._revisions.pop(name, None)
        self._absent.pop(name, None)
        self._suspects.discard(name)
        self._dead.add(name)
        try:
            await self._on_dead(name)
        except BusError as error:
            log.warning("%s is dead, what it held runs out by itself: %s", name, error)

    async def _here(self, msg: Msg) -> None:
        await self._bus.client.publish(msg.reply)
