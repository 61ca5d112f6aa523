"""Detects members of a group that were killed, within a second and before their leases expire.

NATS drops the subscriptions of a killed process at once. So each member of a group answers requests
to `alive.<its name>`, and other members send these requests. Only the answer "no responders" shows
that a member has ended. A process that hangs or is busy keeps its subscription and does not answer;
such a member counts as ended only when its lease expires.

A member that finds that another member has ended deletes the other member's lease, by
compare-and-set on the last revision of the lease that it has seen. All members watch the leases, so
all of them see the deletion. A process on the smaller side of a divided cluster gets "no
responders" for all members, but this process cannot write, so no lease is deleted.

Requests to a running process also get "no responders" while the connection of that process is cut.
The process reconnects after about half a second. Therefore:

- A single "no responders" never suffices. Where a wrong result is expensive, `confirm_s` makes the
  required time longer.
- Within `COUNT_AFTER_S` after its own reconnect, a member does not count other members as ended,
  since the other members may be reconnecting, too.
- Where a wrong result is expensive, no member counts as ended within `NODE_LOST_S` after the
  cluster lost a server. A member may be connected to exactly the lost server, and may need ten
  seconds to connect to another server.

Each member sends requests to the next `SUCCESSORS` members in the order of their names, twice a
second. So the work of a member does not grow with the size of the group.
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

ASK_S = 0.5  # seconds between two requests to a member, and the most seconds to wait for an answer
TIMES = 2  # the number of "no responders" in a row after which a member counts as gone
SUCCESSORS = 3  # the number of next members to which each member sends requests
# seconds after its own reconnect in which a member counts no other member as ended
COUNT_AFTER_S = 1.0
# The seconds after the cluster lost a server in which no member without responders counts as ended,
# if `confirm_s` is set. The time is as long as a connector's lease.
NODE_LOST_S = 15.0


async def _nothing(pod: str) -> None:
    pass


class Peers:
    """Finds out which members of one group still run.

    The lease key of a member is `prefix` (such as `pod.`) and the member's name; `me` is the name
    of this member. `on_gone` is awaited after `TIMES` "no responders" in a row. `on_dead` is
    awaited when the "no responders" have continued for `confirm_s` seconds more and the member's
    lease was deleted. A member that returns and ends again is reported again.

    With `answers_with`, that object answers for this member, too: a process that is a member of
    several groups must answer each request once.
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
        answers_with: Peers | None = None,
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
        # the lease revision of each member that answers, by name
        self._revisions: dict[str, int] = {}
        self._suspects: set[str] = set()  # members that have work but no lease
        self._absent: dict[str, int] = {}  # the number of "no responders" in a row, by member
        self._dead: set[str] = set()
        self._answers_with = answers_with
        self._answering: Subscription | None = None
        self._beginning = asyncio.Lock()

    async def answer(self) -> None:
        """Begin to answer the requests of other members. Call this before the lease is taken, since
        other members send requests as soon as they see it."""
        if self._answers_with is not None:
            return await self._answers_with.answer()
        async with self._beginning:
            if self._answering is None:
                self._answering = await self._bus.jetstream.subscribe(alive(self._me), self._here)

    def on_lease_message(self, stored: Stored) -> None:
        """Process a message of the bucket `leases`. Call this with every message of the bucket."""
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
        """Send requests also to these members, which have no lease but have left work behind."""
        self._suspects |= set(names) - self._revisions.keys() - self._dead - {self._me}

    def is_gone(self, name: str) -> bool:
        """Return whether the last `TIMES` or more requests to the member had no responders. A
        member without responders may return."""
        return name in self._dead or self._absent.get(name, 0) >= TIMES

    def is_dead(self, name: str) -> bool:
        return name in self._dead

    async def run(self) -> None:
        await self.answer()
        while True:
            await asyncio.sleep(ASK_S)
            if self._bus.jetstream.connection.since_reconnect_s >= COUNT_AFTER_S:
                await asyncio.gather(*map(self._ask, self._members_to_ask()))
            else:
                self._absent.clear()

    def _members_to_ask(self) -> set[str]:
        """Return the next members in the order of names, and all that did not answer or are
        suspected."""
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
            await self._on_no_responders(name)
        except NatsError:
            self._absent.pop(name, None)  # the member hangs, or this process is cut off
        else:
            self._absent.pop(name, None)
            self._suspects.discard(name)

    async def _on_no_responders(self, name: str) -> None:
        times = self._absent[name] = self._absent.get(name, 0) + 1
        if times == TIMES:
            await self._on_gone(name)
        since_lost_s = self._bus.jetstream.connection.since_node_lost_s
        may_be_elsewhere = self._confirm_s > 0 and since_lost_s < NODE_LOST_S
        if times >= self._times_to_confirm and not may_be_elsewhere:
            await self._record_end(name)

    async def _record_end(self, name: str) -> None:
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
