"""The surface that serves Penstock's own API, under `/v1`."""

from __future__ import annotations

from penstock_edge.surfaces.surface import Surface
from penstock_edge.surfaces.v1.agent_list import AgentList
from penstock_edge.surfaces.v1.costs import CostSums
from penstock_edge.surfaces.v1.erasures import Erasures
from penstock_edge.surfaces.v1.events import EventsOfAllRuns
from penstock_edge.surfaces.v1.forks import Forks
from penstock_edge.surfaces.v1.runs import Runs
from penstock_edge.surfaces.v1.session_events import SessionEvents
from penstock_edge.surfaces.v1.session_queue import SessionQueues
from penstock_edge.surfaces.v1.system import Health, System


class V1(Surface):
    """Has the handlers for all paths under `/v1` except approvals, which another service serves."""

    handlers = (
        Runs,
        Forks,
        Erasures,
        AgentList,
        EventsOfAllRuns,
        SessionEvents,
        SessionQueues,
        CostSums,
        Health,
        System,
    )
