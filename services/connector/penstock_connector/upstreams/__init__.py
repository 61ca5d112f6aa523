"""Has the adapters to agent servers, one for each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from penstock.bus import Bus
from penstock_connector.upstreams.adk import AdkUpstream
from penstock_connector.upstreams.agno import AgnoUpstream
from penstock_connector.upstreams.agui import AguiUpstream
from penstock_connector.upstreams.base import Upstream
from penstock_connector.upstreams.conversations import Threads


def upstreams(bus: Bus, client: httpx.AsyncClient) -> Mapping[str, Upstream[Any]]:
    return {
        "agno": AgnoUpstream(client),
        "adk": AdkUpstream(client),
        "agui": AguiUpstream(client, Threads(bus)),
    }
