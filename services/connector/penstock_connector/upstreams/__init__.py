"""How to speak to each kind of agent server: a table from protocol to adapter."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_connector.upstreams.adk import AdkUpstream
from penstock_connector.upstreams.agno import AgnoUpstream
from penstock_connector.upstreams.base import Upstream

UPSTREAMS: Mapping[str, Upstream] = {"agno": AgnoUpstream(), "adk": AdkUpstream()}
