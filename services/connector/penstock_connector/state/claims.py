"""Who holds what: claims on runs, turns in sessions, and which connectors live."""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.bus import Bus, BusError, Entry, FenceConflict, Msg, Peers
from penstock.bus.records import Claim, Sent, SessionRecord, Turn
from penstock.bus.streams import RAW
from penstock.bus.subjects import raw_stored, turn
from penstock.bus.write.fence import tail
from penstock_connector.state.leg_note import Held
from penstock_connector.state.run_state import WRITER, is_over

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 2.0
RETRY_S = 0.25
MAX_RUNS_LISTED = 1000
NOBODY = "nobody"  # no connector is called so, thus it counts as dead
MAX_OPEN_OF_BEFORE = 50  # of a record that does not say which runs are over, the last ones


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Do it, again and again while the bus is away: what must not be left half done."""
    level = logging.WARNING
    while True:
        try:
            return await step()
        except FenceConflict:
            raise
        except (BusError, TimeoutError) as error:
            log.log(level, "the bus: %r; once more", error)
            level = logging.DEBUG  # with a thousand legs, once is enough
            await asyncio.sleep(RETRY_S)


class Claims:
    """The records by which connectors divide runs among themselves. Every write is a CAS.

    While `sees_others` is False nobody counts as dead: the bus was away, perhaps from everybody,
    for so long that all leases have run out, and the others are about to renew theirs. `peers`
    knows by asking; whom it found dead is dead in any case.
    """

    def __init__(
        self,
        bus: Bus,
        pod: str,
        sees_others: Callable[[], bool] = lambda: True,
        peers: Peers | None = None,
    ) -> None:
        self.sees_others = sees_others
        self._peers = peers
        self._bus = bus
        self._pod = pod
        self._claims = bus.bucket("claims")
        self._sent = bus.bucket("sent")
        self._leases = bus.bucket("leases")

    async def lives(self, pod: str) -> bool:
        """True while that connector's lease stands, or nobody can tell by it."""
        if pod == self._pod:
            return True
        if self._peers is not None and self._peers.is_dead(pod):
            return False
        if not self.sees_others():
            return True
        if await self._leases.get(f"pod.{pod}") is not None:
            return True
        await self._bus.clock.look()  # when NATS's clock was set, all leases have run out at once
        return not self.sees_others()

    async def is_there(self, pod: str) -> bool:
        """The same, but False as soon as nobody answers for it.

        Enough to begin what it has not begun: should it live, the fence refuses it.
        """
        if pod != self._pod and self._peers is not None and self._peers.is_gone(pod):
            return False
        return await self.lives(pod)

    async def living(self) -> set[str]:
        """All connectors whose lease stands, and this one; ask `sees_others` afterwards."""
        keys = await self._leases.keys("pod.>")
        await self._bus.clock.look()
        return {key.removeprefix("pod.") for key in keys} | {self._pod}

    def suspect(self, pods: set[str]) -> None:
        """Ask whether these live, of which nothing but their notes is left."""
        if self._peers is not None:
            self._peers.suspect(pods)

    async def claim(self, run_id: str, state: str = "held") -> Claim | None:
        """Take a run's start; None when it is ours now, else the claim that stands."""
        claim = Claim.model_validate({"pod": self._pod, "state": state})
        while await self._claims.create(f"claim.{run_id}", claim.dump()) is None:
            if (standing := await self.claimed(run_id)) is not None:
                return standing
        return None

    async def claimed(self, run_id: str) -> Claim | None:
        """The claim that stands."""
        entry = await self._claims.get(f"claim.{run_id}")
        return _claim(entry) if entry is not None else None

    async def take_over(self, run_id: str, state: str = "held") -> bool:
        """Replace the claim of a dead connector."""
        entry = await self._claims.get(f"claim.{run_id}")
        if entry is None or await self.is_there(_claim(entry).pod):
            return False
        claim = Claim.model_validate({"pod": self._pod, "state": state})
        return (
            await self._claims.update(f"claim.{run_id}", claim.dump(), entry.revision) is not None
        )

    async def give_back(self, run_id: str) -> None:
        """Let anybody take over a start that we have claimed and cannot begin."""
        entry = await self._claims.get(f"claim.{run_id}")
        if entry is not None and _claim(entry) == Claim(pod=self._pod):
            claim = Claim(pod=NOBODY)
            await self._claims.update(f"claim.{run_id}", claim.dump(), entry.revision)

    async def begin(self, run_id: str, held: Held) -> None:
        """Note that this connector holds a leg of the run, for those who may have to go on."""
        await self._claims.put(f"active.{self._pod}.{run_id}", held.dump())

    async def end(self, run_id: str) -> None:
        """The leg that this connector has noted has ended, or is somebody else's."""
        await self._claims.delete(f"active.{self._pod}.{run_id}")

    async def end_of(self, pod: str, run_id: str, revision: int) -> None:
        """Take away what another one has noted, unless it lives and has noted it anew."""
        await self._claims.delete(f"active.{pod}.{run_id}", revision)

    async def is_noted(self, run_id: str, pod: str) -> bool:
        """Whether that connector holds a leg of the run, or died with it and is to be reaped."""
        return await self._claims.get(f"active.{pod}.{run_id}") is not None

    async def held(self, run_id: str, pod: str) -> Held | None:
        """What that connector has noted of the leg; None for one of an earlier version."""
        return (await self.noted(run_id, pod))[0]

    async def noted(self, run_id: str, pod: str) -> tuple[Held | None, int]:
        """The same with its revision, by which `end_of` takes it away; 0 where there is none."""
        entry = await self._claims.get(f"active.{pod}.{run_id}")
        return (Held.parse(entry.value), entry.revision) if entry is not None else (None, 0)

    async def active(self, pod: str = "*", run_id: str = "*") -> list[tuple[str, str]]:
        """Pod and run of every leg that is held; those of one pod, or one run."""
        pairs = []
        for key in await self._claims.keys(f"active.{pod}.{run_id}"):
            _, holder, held = key.split(".")
            pairs.append((holder, held))
        return pairs

    async def claim_sending(self, approval_id: str) -> tuple[Sent, int] | None:
        """Take the one sending of a decision; None when it is ours now, else what stands."""
        sent = Sent(pod=self._pod)
        while await self._sent.create(approval_id, sent.dump()) is None:
            if (entry := await self._sent.get(approval_id)) is not None:
                return Sent.model_validate_json(entry.value), entry.revision
        return None

    async def sending(self, approval_id: str) -> Sent | None:
        """What became of the one sending of a decision; None when nobody has claimed it."""
        entry = await self._sent.get(approval_id)
        return Sent.model_validate_json(entry.value) if entry is not None else None

    async def take_over_sending(self, approval_id: str, revision: int) -> bool:
        """Replace the sending of a dead connector that had not begun it."""
        sent = Sent(pod=self._pod)
        return await self._sent.update(approval_id, sent.dump(), revision) is not None

    async def give_back_sending(self, approval_id: str) -> None:
        """Let anybody take over a sending that we have claimed and cannot begin."""
        entry = await self._sent.get(approval_id)
        if entry is not None and Sent.model_validate_json(entry.value) == Sent(pod=self._pod):
            await self._sent.update(approval_id, Sent(pod=NOBODY).dump(), entry.revision)

    async def record_sending(
        self, approval_id: str, state: str, pod: str | None = None, *, is_known: bool = False
    ) -> None:
        """Write down what became of it, unless it is another's by now, or is written down.

        `pod` is whose sending it was, where that is not this connector. What RAW says became of the
        leg (`is_known`) is so whoever took the sending: one that slept may have sent it after all.
        """
        sent = Sent.model_validate({"pod": self._pod, "state": state})
        while (entry := await self._sent.get(approval_id)) is not None:
            stands = Sent.model_validate_json(entry.value)
            if stands.state != "claimed":
                return
            if not is_known and stands.pod not in (self._pod, pod):
                return
            if await self._sent.update(approval_id, sent.dump(), entry.revision) is not None:
                return


class Sessions:
    """The legs of one session run one after another, in the order in which they came."""

    def __init__(self, bus: Bus, claims: Claims) -> None:
        self._bus = bus
        self._claims = claims
        self._bucket = bus.bucket("sessions")

    async def join(
        self,
        key: str,
        agent: str,
        session_id: str,
        thread_id: str,
        mine: Turn,
        *,
        watched: bool = False,
    ) -> bool:
        """Stand in the queue; True when nobody is before us.

        A session that is new is called `thread_id` upstream, now and for ever. Of a `watched` one
        `others` tells which runs may wait.
        """

        def change(record: SessionRecord) -> None:
            if record.thread_id == "":
                record.thread_id = thread_id
            if mine not in record.queue:
                # two connectors may join out of order; the first one may be running already
                waiting = sorted([*record.queue[1:], mine], key=lambda turn: turn.sequence)
                record.queue = [*record.queue[:1], *waiting]
            if watched:
                before = record.runs[-MAX_OPEN_OF_BEFORE:] if record.open is None else record.open
                # the edge may have listed the run already, for the older pair
                record.open = [*(each for each in before if each != mine.run_id), mine.run_id]
            if mine.run_id not in record.runs:
                insort(record.runs, mine.run_id)  # UUIDv7: the order in which they were made
                del record.runs[:-MAX_RUNS_LISTED]

        new = SessionRecord(agent=agent, session_id=session_id, thread_id=thread_id)
        await self._change(key, change, new)
        return await self._is_first(key, mine)

    async def thread_id(self, key: str) -> str | None:
        """What its server calls the session; None when nothing is kept of it."""
        entry = await self._bucket.get(key)
        record = _session(entry) if entry is not None else None
        return (record.thread_id or record.session_id) if record is not None else None

    async def others(self, key: str, run_id: str) -> list[str]:
        """The session's other runs that may wait for a decision: begun, and not seen to be over."""
        entry = await self._bucket.get(key)
        if entry is None:
            return []
        record = _session(entry)
        # a decided run whose answer stands behind us in the queue waits as much as any other
        queued = {turn.run_id for turn in record.queue if turn.leg == 1} | {run_id}
        return [each for each in record.open or [] if each not in queued]

    async def forget_ended(self, key: str, run_ids: Sequence[str]) -> None:
        """These runs are over: nobody need look at them again."""

        def change(record: SessionRecord) -> None:
            if record.open is not None:
                record.open = [each for each in record.open if each not in run_ids]

        await self._change(key, change)

    async def take_over(self, key: str, mine: Turn) -> bool:
        """Stand where the leg's holder before us stood; True when nobody is before us.

        The turns of the run's earlier legs, which are over, go away.
        """

        def change(record: SessionRecord) -> None:
            others = [
                turn for turn in record.queue if turn.run_id != mine.run_id or turn.leg >= mine.leg
            ]
            places = [n for n, turn in enumerate(others) if _same_leg(turn, mine)]
            record.queue = [turn for turn in others if not _same_leg(turn, mine)]
            # the first of its places; behind who runs now, should it have been passed over
            record.queue.insert(places[0] if places else 1, mine)

        await self._change(key, change)
        return await self._is_first(key, mine)

    async def wait(self, key: str, mine: Turn) -> None:
        """Until the leg is at the head of the queue; passes over what nobody ends any more."""
        moved = asyncio.Event()

        async def on_move(msg: Msg) -> None:
            moved.set()

        if await self._is_first(key, mine):
            return
        subscription = await self._bus.subscribe(turn(key), on_move)
        try:
            while not await self._is_first(key, mine):
                try:
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await moved.wait()
                except TimeoutError:
                    await self._pass_over(key, mine)
                moved.clear()
        finally:
            await subscription.unsubscribe()

    async def leave(self, key: str, run_id: str, pod: str, leg: int | None) -> None:
        """The leg that the pod held has ended: the next one's turn.

        Not that of a later leg of the run, which the same pod may have by now. None: of any leg.
        """

        def change(record: SessionRecord) -> None:
            record.queue = [
                turn
                for turn in record.queue
                if (turn.run_id, turn.pod) != (run_id, pod) or leg not in (None, turn.leg)
            ]

        await self._change(key, change)
        await self._bus.client.publish(turn(key))

    async def _is_first(self, key: str, mine: Turn) -> bool:
        entry = await self._bucket.get(key)
        queue = _session(entry).queue if entry is not None else []
        return mine not in queue or queue[0] == mine

    async def _pass_over(self, key: str, mine: Turn) -> None:
        """Take the turns before ours away that nobody will take away any more."""
        while True:
            entry = await self._bucket.get(key)
            queue = _session(entry).queue if entry is not None else []
            if mine not in queue or queue[0] == mine:
                return
            first = queue[0]
            # the fence has let our `open` in: nobody else will run this leg
            if not _same_leg(first, mine) and not await self._is_abandoned(first):
                return
            log.warning("run %s leg %d: its turn is passed over", first.run_id, first.leg)

            def change(record: SessionRecord, first: Turn = first) -> None:
                record.queue = [turn for turn in record.queue if turn != first]

            await self._change(key, change)
            await self._bus.client.publish(turn(key))

    async def _is_abandoned(self, turn: Turn) -> bool:
        """Whether that leg is over, or its connector died before it noted it.

        RAW tells that a leg is over: its connector may have died, or hang, before it left the
        queue. A dead connector's leg that is noted and not over is the reaper's to deal with.
        """
        last = await tail(self._bus, RAW, raw_stored(turn.run_id, WRITER))
        if last is not None and is_over(last, turn.leg):
            return True
        if await self._claims.lives(turn.pod):
            return False
        return not await self._claims.is_noted(turn.run_id, turn.pod)

    async def _change(
        self,
        key: str,
        change: Callable[[SessionRecord], None],
        new: SessionRecord | None = None,
    ) -> None:
        while True:
            entry = await self._bucket.get(key)
            if entry is None and new is None:
                return
            record = _session(entry) if entry is not None else new
            assert record is not None
            before = record.dump()
            change(record)
            after = record.dump()
            if entry is not None and after == before:
                return
            revision = entry.revision if entry is not None else 0
            if await self._bucket.update(key, after, revision) is not None:
                return


def _same_leg(turn: Turn, other: Turn) -> bool:
    return (turn.run_id, turn.leg) == (other.run_id, other.leg)


def _claim(entry: Entry) -> Claim:
    return Claim.model_validate_json(entry.value or b"{}")


def _session(entry: Entry) -> SessionRecord:
    return SessionRecord.model_validate_json(entry.value or b"{}")
