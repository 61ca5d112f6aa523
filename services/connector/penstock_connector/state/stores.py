"""Puts all stores for the connectors' data on the bus into one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.bus import Bus, Peers
from penstock.bus.state.run_trees import RunTrees
from penstock_connector.state.claims import Claims, Sendings
from penstock_connector.state.connectors import Connectors
from penstock_connector.state.leg_record import LegRecords
from penstock_connector.state.run_state import Runs
from penstock_connector.state.session_queue import SessionQueue


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores that connectors use to divide runs among them, and to read runs from RAW."""

    bus: Bus
    pod: str  # the name of this connector
    connectors: Connectors
    claims: Claims
    leg_records: LegRecords
    sendings: Sendings
    sessions: SessionQueue
    runs: Runs
    trees: RunTrees


def open_stores(
    bus: Bus,
    pod: str,
    sees_others: Callable[[], bool] = lambda: True,
    peers: Peers | None = None,
) -> Stores:
    """Return the stores of this connector; `Connectors` explains `sees_others` and `peers`."""
    connectors = Connectors(bus, pod, sees_others, peers)
    leg_records = LegRecords(bus, pod)
    return Stores(
        bus=bus,
        pod=pod,
        connectors=connectors,
        claims=Claims(bus, pod, connectors),
        leg_records=leg_records,
        sendings=Sendings(bus, pod),
        sessions=SessionQueue(bus, connectors, leg_records),
        runs=Runs(bus, pod),
        trees=RunTrees(bus),
    )
