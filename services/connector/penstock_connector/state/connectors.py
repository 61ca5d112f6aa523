"""Which connectors live: their leases in KV `leases`, and the answers to `alive.<pod>`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from penstock.bus import Bus, Peers

NOBODY: Final = "nobody"  # the pod of a claim that was given back; no connector has this name


class Liveness(Enum):
    """What this connector knows of the connector that wrote a record."""

    OURS = "ours"  # the record is this connector's
    ALIVE = "alive"  # its lease is valid, or nobody can tell at present
    SILENT = "silent"  # its lease is valid, but nobody answers for it
    DEAD = "dead"  # its lease has expired, or asking has shown that its process ended


class Connectors:
    """Tells whether other connectors live.

    `sees_others()` is False after the bus was away for so long that all leases have expired. Then
    the other connectors are about to renew their leases, so none of them counts as dead. `peers`
    asks connectors whether they live. A connector that `peers` has found dead is dead in any case.
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
        """What is known of that connector.

        Raises:
            BusError: the leases cannot be read.
        """
        if pod == self._pod:
            return Liveness.OURS
        if not await self.lives(pod):
            return Liveness.DEAD
        return Liveness.ALIVE if await self.answers(pod) else Liveness.SILENT

    async def lives(self, pod: str) -> bool:
        """Whether that connector's lease is valid, or the leases cannot tell.

        Raises:
            BusError: the leases cannot be read.
        """
        if pod == self._pod:
            return True
        if self._peers is not None and self._peers.is_dead(pod):
            return False
        if not self.sees_others():
            return True
        if await self._leases.get(f"pod.{pod}") is not None:
            return True
        # When the clock of NATS was set forward, all leases expire at once. Without this look at
        # the clock, every connector would then take over the runs of every other one.
        await self._bus.clock.look()
        return not self.sees_others()

    async def answers(self, pod: str) -> bool:
        """As `lives`, but False as soon as nobody answers for that connector.

        If nobody answers, another connector may begin what that connector has claimed and not
        begun. If that connector lives after all, the fence refuses its `open`.

        Raises:
            BusError: the leases cannot be read.
        """
        if pod != self._pod and self._peers is not None and self._peers.is_gone(pod):
            return False
        return await self.lives(pod)

    async def living(self) -> set[str]:
        """All connectors with a valid lease, and this one.

        The result counts only if `sees_others()` returns True afterwards.

        Raises:
            BusError: the leases cannot be read.
        """
        keys = await self._leases.keys("pod.>")
        await self._bus.clock.look()
        return {key.removeprefix("pod.") for key in keys} | {self._pod}

    def suspect(self, pods: set[str]) -> None:
        """Ask whether these connectors live. They have leg records, but no lease."""
        if self._peers is not None:
            self._peers.suspect(pods)
