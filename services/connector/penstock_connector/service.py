"""The connector service: carries out commands, holds legs, and takes over legs of dead
connectors."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, ClassVar

from penstock import telemetry
from penstock.bus import BusError, Consumer, Lease, Peers, Reader, Stored, streams
from penstock.bus.connection.retry import until_answered, with_retries
from penstock.bus.read.work_queue import Handle
from penstock.bus.subjects import command, run_id_of
from penstock.http.transport import new_client
from penstock.service import Consumption, Context, Service
from penstock.settings import Settings
from penstock_connector.commands.handlers import Commands
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.decided import NotDecided

log = logging.getLogger(__name__)

AT_ONCE = 64  # the most commands of one kind that are handled at the same time
# The number of seconds for which requests to a silent connector must get the answer "no responders"
# before the connector counts as dead (see `Peers`). With the requests before, a connector counts as
# dead after 2 s. If such a connector is alive after all, its runs at agent servers without
# reattachment are lost. A connector whose connection was cut needs 0.1 to 0.5 s for each NATS
# server that it tries. So 2 s are enough for at least four attempts to reconnect.
CONFIRM_S = 1.5
SHARE_S = 1.0  # seconds between two searches for starts that wait at other connectors
_PODS = "$KV.leases.pod."


class ConnectorService(Service):
    """Receives commands, and writes source frames."""

    name: ClassVar[str] = "connector"
    settings_type: ClassVar[type[Settings]] = ConnectorSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, ConnectorSettings)
        self._settings = context.settings
        self._client = new_client(self._settings.connect_timeout_s)
        self._peers = Peers(
            self.bus,
            "pod.",
            context.pod,
            on_gone=self._on_gone,
            on_dead=self._on_dead,
            confirm_s=CONFIRM_S,
        )
        self._commands_taken: dict[str, Consumption] = {}  # by kind
        self._taking_up: set[asyncio.Task[Any]] = set()
        self._commands = Commands(
            self.bus,
            context.config,
            self._settings,
            self._client,
            context.pod,
            sees_others=lambda: context.alone or self._lease.sees_others,
            peers=self._peers,
        )
        self._may_reap = asyncio.Event()
        ttl_s = self._settings.pod_ttl_s
        self._lease = Lease(self.bus, f"pod.{context.pod}", context.pod, ttl_s, answers=True)

    async def start(self) -> None:
        """Take the lease, and then begin to take commands. In the other order, other connectors
        would conclude that this connector has ended."""
        await until_answered("answering other connectors", self._peers.answer)
        await until_answered("taking the lease", self._lease.acquire)
        self.spawn("lease", lambda: self._lease.hold(self._settings.pod_renew_s))
        await self._commands.handover.accept()
        watch = Reader(self.bus, "KV_leases", f"{_PODS}>", 1, self._on_lease)
        self.spawn("watch", watch.run)
        self.spawn("peers", self._peers.run)
        self.spawn("reaper", self._reap)
        self.spawn("watchdog", self._watch)
        self._take("cancel", self._commands.cancel)
        self._take("continue", self._continue)
        self._take("start", self._commands.start)
        if self._settings.max_waiting_starts:
            self.spawn("share", self._share)
        if self.context.alone:
            self._take_up_commands()  # an earlier process may have left commands

    def _take(self, kind: str, handle: Handle) -> None:
        settings = self._settings
        at_once = {
            # The handling of a cancel lasts until the leg has ended. So there is room for one
            # cancel of each leg, and a slow cancel does not delay other cancels.
            "cancel": max(AT_ONCE, settings.max_legs),
            "start": AT_ONCE + settings.max_waiting_starts,
        }
        consumer = Consumer(
            stream=streams.COMMANDS,
            durable=f"connector-{kind}",
            subjects=(command("connector", kind, "*"),),
            ack_wait_s=settings.ack_wait_s,
            at_once=at_once.get(kind, AT_ONCE),
            room=(lambda: self._commands.room) if kind == "start" else None,
        )
        # The handlers record only the steps that may kill the process. A command that waits for a
        # leg is not blamed if the process dies meanwhile.
        self._commands_taken[kind] = self.consume(
            consumer, handle, give_up=self._give_up, counts_attempts=False
        )

    async def drain(self, grace_s: float) -> None:
        """Take only cancels; hand over the legs that can move without a loss, and let others
        end."""
        await self._take_no_more()
        await self._commands.handover.drain(grace_s)

    async def stop(self) -> None:
        """Hand over or end the remaining legs, and then give the lease back. In the other order,
        another connector would take over legs that this one still holds."""
        await self._take_no_more()
        await self._commands.handover.stop()
        await self.stop_consuming()
        await self.cancel("lease")
        await self._client.aclose()

    async def _take_no_more(self) -> None:
        self._commands.waiting.close()
        await self.cancel("share")
        starts_and_continues = [
            taken for kind, taken in self._commands_taken.items() if kind != "cancel"
        ]
        if starts_and_continues:
            await self.stop_consuming(*starts_and_continues)
        await self.cancel("peers", "watch", "reaper", "watchdog")
        if self._taking_up:
            await asyncio.wait(self._taking_up)
        await self._commands.handover.refuse()

    async def _continue(self, stored: Stored) -> None:
        """Carry a continue command out; without a decision, it becomes a dead letter."""
        try:
            await self._commands.resume(stored)
        except NotDecided as error:
            telemetry.CONTINUES_REFUSED.inc()
            await self.give_up(stored, error)

    async def _give_up(self, stored: Stored, error: Exception) -> None:
        await self.give_up(stored, error)
        dead_letters = self._commands.dead_letters
        if await with_retries(lambda: dead_letters.ends_its_run(stored)):
            await with_retries(lambda: dead_letters.end_run(run_id_of(stored.subject), error))

    async def _on_lease(self, stored: Stored) -> None:
        self._peers.on_lease_message(stored)
        if not stored.payload:  # the lease has expired, or was given back
            self._commands.reaper.lease_ended(stored.subject.removeprefix(_PODS))
            self._may_reap.set()

    async def _on_gone(self, pod: str) -> None:
        self._commands.reaper.mark_silent(pod)
        self._may_reap.set()
        self._take_up_commands()

    async def _on_dead(self, pod: str) -> None:
        self._commands.reaper.lease_ended(pod)
        self._may_reap.set()
        self._take_up_commands()

    def _take_up_commands(self) -> None:
        # The commands that a dead connector had taken are taken up now. NATS would deliver these
        # commands again only after `ack_wait_s`.
        task = asyncio.create_task(self._take_up())
        self._taking_up.add(task)
        task.add_done_callback(self._taking_up.discard)

    async def _take_up(self) -> None:
        for taken in self._commands_taken.values():
            try:
                await taken.take_up()
            except BusError as error:
                log.warning("a dead connector's commands are delivered later: %s", error)
            except Exception:  # a failure for one queue must not delay the other queues
                log.exception("a dead connector's commands are delivered later")

    async def _share(self) -> None:
        """While this connector has free legs, begin starts that wait at another connector."""
        seen = 0
        while True:
            await asyncio.sleep(SHARE_S)
            if not self._commands.has_free_legs:
                seen = 0
                continue
            try:
                # Starts that were delivered since the last search are left out, because another
                # connector is most likely beginning them.
                taking_up = asyncio.create_task(self._commands_taken["start"].take_up(seen))
                self._taking_up.add(taking_up)
                taking_up.add_done_callback(self._taking_up.discard)
                # a start that has begun is completed, even if the service stops
                seen = await asyncio.shield(taking_up)
            except BusError as error:
                log.warning("starts that wait at other connectors are looked for later: %s", error)

    async def _reap(self) -> None:
        while True:
            self._may_reap.clear()
            try:
                await self._commands.reaper.reap()
            except BusError as error:
                log.warning("dead connectors are looked for later: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.reap_s):
                    await self._may_reap.wait()

    async def _watch(self) -> None:
        watchdog, look_s = self._commands.watchdog, self._settings.watch_s
        loop = asyncio.get_running_loop()
        look_at = loop.time() + look_s
        try:
            while True:
                await asyncio.sleep(min(self._settings.pod_renew_s, look_s))
                try:
                    if await watchdog.renew_lease() and loop.time() >= look_at:
                        look_at = loop.time() + look_s
                        await watchdog.check()
                except BusError as error:
                    log.warning("runs that are stuck are looked for later: %s", error)
        finally:
            with suppress(BusError):
                await asyncio.shield(watchdog.stop())
