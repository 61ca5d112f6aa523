"""Makes the parts of the connector, and has a handler for each command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx

from penstock.bus import Bus, Peers
from penstock.bus.state.attempts import Attempts
from penstock.settings import Config
from penstock_connector.commands.abandoned import AbandonedRuns, DeadLetters
from penstock_connector.commands.cancel import CancelHandler
from penstock_connector.commands.continue_ import ContinueHandler
from penstock_connector.commands.fair_queue import FairQueue
from penstock_connector.commands.shared import CommandContext
from penstock_connector.commands.start import StartHandler
from penstock_connector.legs.opener import LegOpener
from penstock_connector.legs.orders import Orders
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.legs.runner import LegRunner
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.stores import open_stores
from penstock_connector.succession.handover import Handover
from penstock_connector.succession.reaper import Reaper
from penstock_connector.succession.takeover import Takeover
from penstock_connector.succession.watchdog import Watchdog

OPEN_AT_ONCE: Final = 64  # the most starts whose legs are opened at the same time


class Commands:
    """Has the handlers of the three commands, and the connector's background tasks."""

    def __init__(
        self,
        bus: Bus,
        config: Config,
        settings: ConnectorSettings,
        client: httpx.AsyncClient,
        pod: str,
        *,
        sees_others: Callable[[], bool] = lambda: True,
        peers: Peers | None = None,
    ) -> None:
        stores = open_stores(bus, pod, sees_others, peers)
        orders = Orders(bus)
        self.registry = LegRegistry(settings.max_legs)
        self.runner = LegRunner(stores, settings, client, orders, self.registry)
        opener = LegOpener(stores, self.registry, self.runner)
        takeover = Takeover(
            stores,
            config,
            max_frame_bytes=settings.max_frame_bytes,
            orders=orders,
            registry=self.registry,
            opener=opener,
            runner=self.runner,
        )
        context = CommandContext(
            bus=bus,
            config=config,
            stores=stores,
            orders=orders,
            registry=self.registry,
            opener=opener,
            takeover=takeover,
            runner=self.runner,
            attempts=Attempts(bus, "connector"),
        )
        self._max_waiting = settings.max_waiting_starts
        self.waiting = FairQueue(
            lambda: self.registry.free_legs, self.registry.has_leg, OPEN_AT_ONCE
        )
        continues = ContinueHandler(context)
        canceller = CancelHandler(context)
        self.start = StartHandler(context, self.waiting, canceller.carry_out).handle
        self.resume = continues.handle
        self.cancel = canceller.handle
        self.dead_letters = DeadLetters(context)
        self.reaper = Reaper(stores, self.registry, takeover)
        self.handover = Handover(stores, self.registry, self.runner, takeover)
        abandoned = AbandonedRuns(context, continues)
        self.watchdog = Watchdog(
            stores,
            take_over=abandoned.take_over,
            send=abandoned.send,
            end=abandoned.end,
            ttl_s=settings.pod_ttl_s,
        )

    @property
    def room(self) -> int:
        """The number of starts to fetch: one for each free leg, and `max_waiting_starts` more."""
        return max(self.registry.free_legs, 0) + self._max_waiting

    @property
    def has_free_legs(self) -> bool:
        """Whether a start that waits at another connector could begin here."""
        return self.registry.free_legs > 0 and not len(self.waiting)
