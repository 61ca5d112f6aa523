"""Serve liveness, readiness and metrics, on a separate port."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.web.operation import Answer, Operation, Route, routes_of, serves

_probe = partial(
    Operation,
    method="GET",
    tag="probes",
    answers={200: Answer("All is well")},
    scopes=(),
    public=True,
    published=False,
)


class Probed(Protocol):
    """The part of a service that the probes read."""

    @property
    def name(self) -> str: ...

    @property
    def not_ready(self) -> list[str]:
        """The reasons why the service cannot take work now; empty if the service can take work."""
        ...

    @property
    def notices(self) -> Sequence[str]:
        """Notices for the operator that do not make the service unready; usually none."""
        ...


class Probes:
    """The handlers of `/livez`, `/readyz` and `/metrics`.

    `/readyz` returns `{"ready": true, "services": {"<name>": []}}`. The list of a service has the
    reasons why it cannot take work. If any list has a reason, the status is 503. The answer has a
    member `notices` only if there are notices, and a member `csrf_secret` only if the process has
    an API that authenticates callers.
    """

    def __init__(self, services: Sequence[Probed], csrf_secret: str | None) -> None:
        self._services = services
        self._csrf_secret = csrf_secret

    @serves(_probe(path="/livez", summary="Whether the process answers"))
    async def live(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    @serves(_probe(path="/readyz", summary="Whether every service can take work"))
    async def ready(self, request: Request) -> Response:
        reasons = {service.name: service.not_ready for service in self._services}
        able = not any(reasons.values())
        body: dict[str, object] = {"ready": able, "services": reasons}
        if notices := sorted({text for service in self._services for text in service.notices}):
            body["notices"] = notices
        if self._csrf_secret is not None:
            body["csrf_secret"] = self._csrf_secret
        return JSONResponse(body, 200 if able else 503)

    @serves(_probe(path="/metrics", summary="The metrics, for Prometheus"))
    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})


def probe_routes(services: Sequence[Probed], csrf_secret: str | None = None) -> list[Route]:
    """Return the routes of the probes. The caller may still change the list `services` later.

    `csrf_secret` is the fingerprint of the secret that signs CSRF tokens, or `its own` for a secret
    that no other process has. `penstock doctor` compares the fingerprints of all services.
    """
    return routes_of(Probes(services, csrf_secret))
