"""Liveness, readiness and metrics, on a port of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route


class Probed(Protocol):
    """What the probes ask."""

    @property
    def name(self) -> str:
        """What the service is called."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it can work now."""
        ...


def probe_routes(services: Sequence[Probed]) -> list[BaseRoute]:
    """`/livez` (the loop turns), `/readyz` (503 until all are ready), `/metrics` (Prometheus)."""

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        states = {service.name: service.ready for service in services}
        return JSONResponse(states, 200 if all(states.values()) else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/livez", live), Route("/readyz", ready), Route("/metrics", metrics)]
