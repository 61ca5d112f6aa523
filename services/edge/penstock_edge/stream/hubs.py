"""Keeps the hubs of one process: one hub for each view that clients follow."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.bus import Bus, Loss
from penstock.bus.records.runs import RunRecord
from penstock.runs.start import frames_refused
from penstock.telemetry import CLIENTS, RESUMES
from penstock.web.auth.identity import NOBODY, Identity
from penstock.web.read_scheduler import ReadScheduler
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import StartPosition
from penstock_edge.stream.client import Client
from penstock_edge.stream.flushes import SLICE, Flushes
from penstock_edge.stream.hub import Hub
from penstock_edge.stream.open_streams import OpenStreams, check_period_s
from penstock_edge.stream.ring import RingBudget
from penstock_edge.views.audience import PII, seen_by
from penstock_edge.views.erased import ERASED
from penstock_edge.views.view import ManyRuns, RunEvents, RunTree, View


class Hubs:
    """Makes and stops the hubs of this process, and maintains their clients periodically."""

    def __init__(
        self, bus: Bus, settings: EdgeSettings, turns: ReadScheduler | None = None
    ) -> None:
        self.turns = turns or ReadScheduler()
        self.streams = OpenStreams(settings.max_streams, settings.max_connection_age_s)
        self._bus = bus
        self._settings = settings
        self._budget = RingBudget(settings.max_ring_bytes)
        self._flushing: Flushes | None = None
        self._hubs: dict[tuple[str, ...], Hub] = {}
        # the hubs that still have clients but accept no new clients
        self._detached: set[Hub] = set()
        self._clients: dict[Hub, set[Client]] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    async def join(self, view: View, start: StartPosition, who: Identity = NOBODY) -> Client:
        """Return a new client of a view, for this caller. Problem: as `require_frames`, for a view
        of source frames: whoever reads frames comes through here."""
        if view.reads_frames:
            await self.require_frames(view.run_id, who)
        view = seen_by(who, view)
        if start.erased:
            # The hub of the run before its erasure has its content.
            view = replace(view, key=(*view.key, ERASED))
        hub = self._hubs.get(view.key)
        if hub is None or hub.is_failed:
            ring_bytes = self._settings.ring_bytes
            hub = self._hubs[view.key] = Hub(
                self._bus, view, start, ring_bytes, self._budget, self._flushes()
            )
        client = Client(hub, start, self._left, self.turns)
        hub.add(client)
        self._clients.setdefault(hub, set()).add(client)
        self.streams.add(client)
        CLIENTS.labels(view.dialect).inc()
        if start.after is not None:
            RESUMES.labels("truncated" if start.truncated else "hit").inc()
        try:
            await hub.start()
        except Exception:
            self._forget(hub)
            client.leave()
            raise
        # Only this client's request was cancelled. Other clients may wait for the same start, so
        # the hub continues.
        except asyncio.CancelledError:
            client.leave()
            raise
        return client

    async def require_frames(self, run_id: str, who: Identity) -> None:
        """Raise Problem 409 for a run with redactions, unless these only mask what the caller may
        read."""
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        only_masked = record is not None and record.masked == "all" and who.has_scope(PII)
        if record is not None and record.redactions is not None and not only_masked:
            raise frames_refused(record.redactions)

    async def maintain(self) -> None:
        period_s = check_period_s(self._settings.keep_alive_s)
        while True:
            await asyncio.sleep(period_s)
            self.streams.rotate()
            clients = [client for clients in self._clients.values() for client in clients]
            now = asyncio.get_running_loop().time()
            for number, client in enumerate(clients, 1):
                client.maintain(now, period_s, self._settings)
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    def on_loss(self, loss: Loss) -> None:
        """End the client streams that cannot continue after NATS has lost the end of a stream; they
        reconnect, and a cursor of a lost message gets 410.

        Streams of source frames or of many runs end. Those of one run's events continue: `Follow`
        recognizes an event that is published again by its number. But if the ring of a run has
        evicted items, they end, too, because the clients may have to read the JetStream stream
        again.
        """
        for key, hub in tuple(self._hubs.items()):
            view = hub.view
            if view.followed.stream != loss.stream:
                continue
            if isinstance(view.reads, RunEvents) and not hub.ring.base and hub.clients:
                # Events that are published again get other stream sequences, and a new client
                # begins at such a sequence. So new clients need a new hub.
                del self._hubs[key]
                self._detached.add(hub)
            else:
                self._forget(hub)

    def on_erased(self, run_id: str) -> None:
        """Drop what the rings have of a run whose content is withheld. Streams of the run end, and
        clients that come back get what is left of it."""
        # The run may be among those of a view of many runs. Clients that are behind the ring read
        # EVENTS, from which the run's content is withheld.
        self.empty_rings()
        for hub in (*self._hubs.values(), *self._detached):
            if hub.view.run_id == run_id and hub.view.key[-1] != ERASED:
                self._forget(hub)

    def empty_rings(self) -> None:
        """Drop what the rings of views of many runs have."""
        for hub in (*self._hubs.values(), *self._detached):
            if isinstance(hub.view.reads, ManyRuns | RunTree):
                hub.evict_all()

    async def close(self) -> None:
        hubs = (*self._hubs.values(), *self._detached)
        self._hubs.clear()
        self._detached.clear()
        await asyncio.gather(*(hub.stop() for hub in hubs), *self._stopping)
        if self._flushing is not None:
            self._flushing.close()

    def _flushes(self) -> Flushes:
        # The scheduler needs a running event loop and so is made late.
        if self._flushing is None:
            self._flushing = Flushes(self._budget.report)
        return self._flushing

    def _left(self, client: Client) -> None:
        hub = client.hub
        if client not in hub.clients:
            return
        hub.discard(client)
        clients = self._clients[hub]
        clients.discard(client)
        if not clients:
            del self._clients[hub]
        self.streams.discard(client)
        CLIENTS.labels(hub.view.dialect).dec()
        if clients:
            return
        if hub in self._detached:
            self._detached.discard(hub)
            self._forget(hub)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.hub_grace_s, self._expire, hub)

    def _expire(self, hub: Hub) -> None:
        if not hub.clients and self._hubs.get(hub.view.key) is hub:
            self._forget(hub)

    def _forget(self, hub: Hub) -> None:
        if self._hubs.get(hub.view.key) is hub:
            del self._hubs[hub.view.key]
        task = asyncio.create_task(hub.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
