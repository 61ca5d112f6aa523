"""Detecting dead members of a group, within a second of a kill and long before a lease expires.

NATS drops the subscriptions of a killed process at once. So each member of a group answers requests
to `alive.<its name>`, and other members send them. Only the answer "no responders" is a sign of
death. A process that hangs or is busy keeps its subscription and merely does not answer; its lease
decides then.

The member that finds another one dead deletes that one's lease, by compare-and-set on the revision
that it knows. All members watch the leases and so learn of the death. A process on the smaller side
of a divided cluster sees no responders anywhere, but it cannot write, so it does no harm.

A living process has no responders while its connection is cut. It reconnects after about half a
second. Therefore:

- one "no responders" is not enough, and `confirm_s` makes the time longer where a wrong verdict is
  expensive;
- no member is judged within `CALM_S` after the own reconnect, since the others may be
  reconnecting, too;
- where a wrong verdict is expensive, no member is found dead within `NODE_LOST_S` after the cluster
  lost a server: a member may be connected to just that server, and leave it only after ten seconds.

Each member asks the `SUCCESSORS` next ones in the order of their names, twice a second. So the work
of a member does not grow with the size of the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from penstock.bus.errors import BusError
from penstock.bus.messages import Stored
from penstock.bus.state.kv import Buckets
from penstock.bus.subjects import alive

log = logging.getLogger(__name__)

ANSWERS = "Penstock-Answers"  # header of a lease: the holder answers requests to `alive.<holder>`

ASK_S = 0.5
TIMES = 2  # "no responders" in a row before a member counts as gone
SUCCESSORS = 3
CALM_S = 1.0
NODE_LOST_S = 15.0  # as long as a connector's lease


async def _nothing(pod: str) -> None:
    pass


class Peers:
    """The members of one group, and whether their processes live.

    The lease key of a member is `prefix` (such as `pod.`) and its name; `me` is the own name.
    `on_gone` is awaited after `TIMES` "no responders" in a row, `on_dead` when this has lasted for
    `confirm_s` seconds more and the member's lease was deleted. A member that returns and dies
    again is reported again.
    """

    def __init__(
        self,
        bus: Buckets,
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
        self._revisions: dict[str, int] = {}  # of the leases of members that answer requests
        self._suspects: set[str] = set()  # members without a lease that left work behind
        self._absent: dict[str, int] = {}  # "no responders" in a row, by member
        self._dead: set[str] = set()
        self._answering: Subscription | None = None

    async def answer(self) -> None:
        """Begin to answer. Call this before taking the lease: others ask as soon as they see it.

        Raises:
            BusUnavailable: the server did not take the subscription.
        """
        if self._answering is None:
            self._answering = await self._bus.jetstream.subscribe(alive(self._me), self._here)

    def saw(self, stored: Stored) -> None:
        """Take in a change of the bucket `leases`. Call this with each of its messages."""
        name = stored.subject.removeprefix(self._subject)
        if name == self._me or not stored.subject.startswith(self._subject):
            return
        if stored.payload:
            self._dead.discard(name)
            self._suspects.discard(name)
        if stored.payload and ANSWERS in stored.headers:
            self._revisions[name] = stored.sequence
        else:
            # The member has left, or its version does not answer requests.
            self._revisions.pop(name, None)
            if name not in self._suspects:
                self._absent.pop(name, None)

    def suspect(self, names: Iterable[str]) -> None:
        """Ask these members, too, which have no lease."""
        self._suspects |= set(names) - self._revisions.keys() - self._dead - {self._me}

    def is_gone(self, name: str) -> bool:
        """Whether the last requests, two or more, had no responders. The member may return."""
        return name in self._dead or self._absent.get(name, 0) >= TIMES

    def is_dead(self, name: str) -> bool:
        """Whether the member was found dead, and has not returned since."""
        return name in self._dead

    async def run(self) -> None:
        """Ask until cancelled.

        Raises:
            BusUnavailable: the server did not take the subscription for answers.
        """
        await self.answer()
        while True:
            await asyncio.sleep(ASK_S)
            if self._bus.jetstream.connection.calm_s >= CALM_S:
                await asyncio.gather(*map(self._ask, self._whom()))
            else:
                self._absent.clear()

    def _whom(self) -> set[str]:
        """The next members in the order of names, and all absent ones until their fate is known."""
        known = sorted(self._revisions)
        after = [name for name in known if name > self._me] + [
            name for name in known if name < self._me
        ]
        present = [name for name in after if name not in self._absent]
        absent = self._absent.keys() & (self._revisions.keys() | self._suspects)
        return {*present[:SUCCESSORS], *absent, *self._suspects}

    async def _ask(self, name: str) -> None:
        try:
            await self._bus.jetstream.connection.request(alive(name), timeout=ASK_S)
        except NoRespondersError:
            await self._nobody(name)
        except NatsError:
            self._absent.pop(name, None)  # the member hangs, or this process is cut off
        else:
            self._absent.pop(name, None)
            self._suspects.discard(name)

    async def _nobody(self, name: str) -> None:
        times = self._absent[name] = self._absent.get(name, 0) + 1
        if times == TIMES:
            await self._on_gone(name)
        whole_s = self._bus.jetstream.connection.cluster_whole_s
        may_be_elsewhere = self._confirm_s > 0 and whole_s < NODE_LOST_S
        if times >= self._times_to_confirm and not may_be_elsewhere:
            await self._bury(name)

    async def _bury(self, name: str) -> None:
        revision = self._revisions.get(name)
        try:
            if revision is not None and not await self._leases.delete(
                self._prefix + name, revision
            ):
                self._absent.pop(name, None)  # the lease was renewed, or deleted by another member
                return
        except BusError as error:
            log.warning("%s does not answer; cannot delete its lease yet: %s", name, error)
            return
        log.warning("%s is dead: its process has left NATS", name)
        self._revisions.pop(name, None)
        self._absent.pop(name, None)
        self._suspects.discard(name)
        self._dead.add(name)
        try:
            await self._on_dead(name)
        except BusError as error:
            log.warning("%s is dead; its other leases expire by themselves: %s", name, error)

    async def _here(self, msg: Msg) -> None:
        await self._bus.jetstream.connection.publish(msg.reply)
