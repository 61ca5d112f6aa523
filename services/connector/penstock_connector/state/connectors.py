"""Finds out which connectors are alive, by leases and by answers to `alive.<pod>`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from penstock.bus import Bus, Peers

NOBODY: Final = "nobody"  # the pod in a claim that was given back; no connector has this name


class Liveness(Enum):
    """Describes the connector that wrote a record, as far as this connector knows its state."""

    OURS = "ours"  # this connector wrote the record
    ALIVE = "alive"  # the lease is valid, or the leases cannot be read reliably now
    SILENT = "silent"  # the lease is valid, but the connector does not answer
    # the lease has expired, or requests to the connector have shown that its process has ended
    DEAD = "dead"


class Connectors:
    """Finds out whether other connectors are alive.

    `sees_others()` is False if the bus did not answer for so long that all leases have expired. The
    other connectors are then about to renew their leases, so none of these connectors counts as
    dead. `peers` asks connectors whether they are alive. A connector that `peers` has found dead
    always counts as dead.
    """

    def __init__(
        self,
        bus: Bus,
        pod: str,
        sees_others: Callable[[], bool] = lambda: True,
        peers: Peers | None = None,
    ) -> None:
        self.sees_others = sees_others
        self._bus = bus
        self._pod = pod
        self._peers = peers
        self._leases = bus.bucket("leases")

    async def liveness(self, pod: str) -> Liveness:
        if pod == self._pod:
            return Liveness.OURS
        if not await self.is_alive(pod):
            return Liveness.DEAD
        return Liveness.ALIVE if await self.is_responding(pod) else Liveness.SILENT

    async def is_alive(self, pod: str) -> bool:
        """Return whether the connector's lease is valid; True while the leases cannot show this."""
        if pod == self._pod:
            return True
        if self._peers is not None and self._peers.is_dead(pod):
            return False
        if not self.sees_others():
            return True
        if await self._leases.get(f"pod.{pod}") is not None:
            return True
        # If the clock of NATS was set forward, all leases expire at once. So the clock is checked
        # here. Without this check, every connector would take over the runs of all other
        # connectors.
        await self._bus.clock.refresh()
        return not self.sees_others()

    async def is_responding(self, pod: str) -> bool:
        """Return the same as `is_alive`, but False as soon as the connector does not answer.

        Another connector may then begin work that the silent connector has claimed and not begun.
        If the silent connector is alive after all, the fence refuses its `open`.
        """
        if pod != self._pod and self._peers is not None and self._peers.is_gone(pod):
            return False
        return await self.is_alive(pod)

    async def alive_pods(self) -> set[str]:
        """Return all connectors with a valid lease, and this connector. The result may be used only
        if `sees_others()` returns True afterwards."""
        keys = await self._leases.keys("pod.>")
        await self._bus.clock.refresh()
        return {key.removeprefix("pod.") for key in keys} | {self._pod}

    def suspect(self, pods: set[str]) -> None:
        """Ask whether these connectors are alive, because they have leg records but no lease."""
        if self._peers is not None:
            self._peers.suspect(pods)
