"""The connector: takes commands, holds legs, and ends those of dead connectors."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import httpx

from penstock import telemetry
from penstock.bus import BusError, Lease, Peers, Reader, Stored, WorkQueue, streams
from penstock.bus.state.leases import keep
from penstock.bus.subjects import run_id_of
from penstock.service import Context, Service
from penstock.settings import Settings
from penstock_connector.commands.handlers import Commands, patient
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.claims import patiently
from penstock_connector.state.decided import NotDecided

log = logging.getLogger(__name__)

KEEPALIVE_S = 1.0
AT_ONCE = 64  # commands of a kind
# In all nobody must answer for a connector for 2 s: a wrong guess loses the runs whose server
# cannot be come back to. A connection that was cut is back after 0.1 to 0.5 s for each server that
# is tried, so these are at least four attempts.
CONFIRM_S = 1.5
SHARE_S = 1.0
_PODS = "$KV.leases.pod."


class ConnectorService(Service):
    """Commands in, source frames out."""

    name: ClassVar[str] = "connector"
    settings_type: ClassVar[type[Settings]] = ConnectorSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, ConnectorSettings)
        self._settings = context.settings
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(
                None, connect=self._settings.connect_timeout_s, write=60.0, pool=None
            ),
            # a server may close an idle connection at the very moment of a request on it, and then
            # nobody knows whether the run has begun: none is used that was idle for long
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_S),
            follow_redirects=False,
        )
        self._peers = Peers(
            self.bus,
            "pod.",
            context.pod,
            on_gone=self._on_gone,
            on_dead=self._on_dead,
            confirm_s=CONFIRM_S,
        )
        self._queues: list[WorkQueue] = []
        self._taking_up: set[asyncio.Task[Any]] = set()
        self._commands = Commands(
            self.bus,
            context.config,
            self._settings,
            self._client,
            context.pod,
            lambda: context.alone or self._lease.sees_others,
            self._peers,
        )
        self._somebody_left = asyncio.Event()
        ttl_s = self._settings.pod_ttl_s
        self._lease = Lease(self.bus, f"pod.{context.pod}", context.pod, ttl_s, answers=True)

    async def start(self) -> None:
        """Say that it lives before it takes anything."""
        await self._peers.answer()
        await self._lease.acquire()
        self.spawn("lease", lambda: keep(self._lease, self._settings.pod_renew_s))
        await self._commands.succession.accept()
        watch = Reader(self.bus, "KV_leases", f"{_PODS}>", 1, self._on_lease)
        self.spawn("watch", watch.run)
        self.spawn("peers", self._peers.run)
        self.spawn("reaper", self._reap)
        self.spawn("watchdog", self._watch)
        handlers = {
            "cancel": self._commands.cancel,
            "continue": self._continue,
            "start": self._commands.start,
        }
        at_once = {
            # a cancel is at work until its leg has ended: one that takes its time keeps no other
            "cancel": max(AT_ONCE, self._settings.max_legs),
            "start": AT_ONCE + self._settings.max_waiting_starts,
        }
        for kind, handle in handlers.items():
            queue = WorkQueue(
                self.bus,
                streams.COMMANDS,
                f"connector-{kind}",
                [f"command.connector.{kind}.*"],
                patient(handle),
                on_poison=self._give_up,
                ack_wait_s=self._settings.ack_wait_s,
                room=(lambda: self._commands.room) if kind == "start" else None,
                concurrency=at_once.get(kind, AT_ONCE),
                max_unfinished=None,  # see `state/attempts.py`
            )
            self._queues.append(queue)
            self.spawn(kind, queue.run)
            if kind == "start" and self._settings.max_waiting_starts:
                self.spawn("share", partial(self._share, queue))
        if self.context.alone:
            self._begin_instead()  # of whoever worked on this bus before

    async def drain(self, grace_s: float) -> None:
        """Take no work, but cancels; hand over what others can go on with, and let the rest end."""
        await self._take_no_more()
        await self._commands.succession.drain(grace_s)

    async def stop(self) -> None:
        """Hand over or end the legs that are left, then give the lease back."""
        await self._take_no_more()
        await self._commands.succession.stop()
        await self.cancel("cancel", "lease")
        await self._client.aclose()

    async def _take_no_more(self) -> None:
        self._commands.turns.close()
        await self.cancel("share", "start", "continue", "peers", "watch", "reaper")
        if self._taking_up:
            await asyncio.wait(self._taking_up)
        await self._commands.succession.refuse()

    async def _continue(self, stored: Stored) -> None:
        """A command without a decision is kept as a dead letter, and changes nothing."""
        try:
            await self._commands.resume(stored)
        except NotDecided as error:
            telemetry.CONTINUES_REFUSED.inc()
            await self.give_up(stored, error)

    async def _give_up(self, stored: Stored, error: Exception) -> None:
        await self.give_up(stored, error)
        if await patiently(lambda: self._commands.ends_its_run(stored)):
            await patiently(lambda: self._commands.fail(run_id_of(stored.subject), error))

    async def _on_lease(self, stored: Stored) -> None:
        self._peers.saw(stored)
        if not stored.payload:  # it has run out, or was given back
            self._commands.succession.left(stored.subject.removeprefix(_PODS))
            self._somebody_left.set()

    async def _on_gone(self, pod: str) -> None:
        self._commands.succession.gone(pod)
        self._somebody_left.set()
        self._begin_instead()

    async def _on_dead(self, pod: str) -> None:
        self._commands.succession.left(pod)
        self._somebody_left.set()
        self._begin_instead()

    def _begin_instead(self) -> None:
        # what a dead one had taken and not begun would wait for `ack_wait_s`
        task = asyncio.create_task(self._take_up())
        self._taking_up.add(task)
        task.add_done_callback(self._taking_up.discard)

    async def _take_up(self) -> None:
        for queue in self._queues:
            try:
                await queue.take_up()
            except BusError as error:
                log.warning("commands of a dead connector come again by themselves: %s", error)

    async def _share(self, starts: WorkQueue) -> None:
        """While legs are free here, begin starts that wait for one at another connector."""
        seen = 0
        while True:
            await asyncio.sleep(SHARE_S)
            if not self._commands.has_free_legs:
                seen = 0
                continue
            try:
                # what was not delivered a look ago is being begun, most likely
                taking_up = asyncio.create_task(starts.take_up(seen))
                self._taking_up.add(taking_up)
                taking_up.add_done_callback(self._taking_up.discard)
                seen = await asyncio.shield(taking_up)  # what is begun is done, also at a stop
            except BusError as error:
                log.warning("looking for starts that wait at other connectors: %s", error)

    async def _reap(self) -> None:
        while True:
            self._somebody_left.clear()
            try:
                await self._commands.succession.reap()
            except BusError as error:
                log.warning("looking for dead connectors: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.reap_s):
                    await self._somebody_left.wait()

    async def _watch(self) -> None:
        watchdog, look_s = self._commands.watchdog, self._settings.watch_s
        loop = asyncio.get_running_loop()
        look_at = loop.time() + look_s
        try:
            while True:
                await asyncio.sleep(min(self._settings.pod_renew_s, look_s))
                try:
                    if await watchdog.beat() and loop.time() >= look_at:
                        look_at = loop.time() + look_s
                        await watchdog.look()
                except BusError as error:
                    log.warning("looking for runs that nobody would move: %s", error)
        finally:
            with suppress(BusError):
                await asyncio.shield(watchdog.stop())
