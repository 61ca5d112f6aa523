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
    def not_ready(self) -> list[str]:
        """Why it cannot take work now; empty while it can."""
        ...

    @property
    def notices(self) -> Sequence[str]:
        """What an operator should know though it works; most often nothing."""
        ...


def probe_routes(services: Sequence[Probed]) -> list[BaseRoute]:
    """`/livez` (the loop turns), `/readyz` (can it take work?), `/metrics` (Prometheus).

    `/readyz` is `{"ready": true, "services": {"<name>": []}}`; with a reason in any list it is 503.
    `notices` stands beside them while there is something else that an operator should know.
    """

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        reasons = {service.name: service.not_ready for service in services}
        able = not any(reasons.values())
        body: dict[str, object] = {"ready": able, "services": reasons}
        if notices := sorted({text for service in services for text in service.notices}):
            body["notices"] = notices
        return JSONResponse(body, 200 if able else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/livez", live), Route("/readyz", ready), Route("/metrics", metrics)]
