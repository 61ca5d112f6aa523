"""Runs the demo's connector as a process of its own, which a person may kill to see a recovery."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import ClassVar, Final

import yaml
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.service import Context, Service
from penstock.web.bodies import ignore_body
from penstock.web.operation import (
    TEXT,
    Answer,
    Operation,
    an_object,
    json,
    operations_of,
    routes_of,
    serves,
)
from penstock_cli.local.child import Child
from penstock_cli.local.embedded_nats import write_private

log = logging.getLogger(__name__)

END: Final = "/v1/demo/connector/end"
# The console imports this script. Its own says that there is nothing to end.
_SCRIPT: Final = f'export const END_CONNECTOR = "{END}";\n'
_JAVASCRIPT: Final = "text/javascript; charset=utf-8"


class Routes:
    """The handlers of the routes, which only the demo has."""

    def __init__(self, connector: DemoConnector) -> None:
        self._connector = connector

    @serves(
        Operation(
            method="POST",
            path=END,
            summary="Kill the demo's connector; another one is started, and continues its runs",
            tag="demo",
            answers={202: json("It is killed", an_object(killed=TEXT))},
            scopes=("start",),
            published=False,
        )
    )
    async def end(self, request: Request) -> Response:
        await ignore_body(request)
        self._connector.kill()
        return JSONResponse({"killed": "connector"}, 202)

    @serves(
        Operation(
            method="GET",
            path="/assets/demo.js",
            summary="What the console may do in the demo",
            tag="demo",
            answers={200: Answer("The script")},
            scopes=(),
            public=True,
            published=False,
        )
    )
    async def script(self, request: Request) -> Response:
        return Response(_SCRIPT, media_type=_JAVASCRIPT, headers={"cache-control": "no-cache"})


class DemoConnector(Service):
    """Keeps a connector's process in the place of the service `connector`.

    A killed process never tells that it ends, as after a crash. So the next connector finds its
    runs as in any installation.
    """

    name: ClassVar[str] = "connector"
    operations = operations_of(Routes)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.routes = routes_of(Routes(self))
        self._child: Child | None = None

    async def start(self) -> None:
        credentials = self.context.settings.nats_passwords
        assert credentials is not None, "the demo's connector needs the embedded NATS server"
        data = credentials.parent
        file = data / "demo" / "connector.yaml"
        agents = [
            each.model_dump(mode="json", exclude_unset=True)
            for each in self.context.config.server_agents
        ]
        # Headers of agents may be secret.
        write_private(file, yaml.safe_dump({"agents": agents}, sort_keys=False))
        await self._begin(data, file)
        self.spawn("connector", lambda: self._keep(data, file))

    async def drain(self, grace_s: float) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self.cancel("connector")
        if self._child is not None:
            await self._child.stop()
            self._child = None

    def kill(self) -> None:
        """Kill the process; another one is started."""
        if self._child is not None:
            self._child.kill()

    async def _begin(self, data: Path, config: Path) -> None:
        settings = self.context.settings
        kept = {name: text for name, text in os.environ.items() if "PENSTOCK_NATS_" not in name}
        self._child = await Child.start(
            "the demo's connector",
            [sys.executable, "-m", "penstock_connector"],
            log=data / "logs" / "connector.log",
            env=kept
            | {
                "PENSTOCK_CONFIG": str(config),
                "PENSTOCK_NATS_URL": settings.nats_url,
                "PENSTOCK_NATS_PASSWORDS": str(data / "credentials"),
                "PENSTOCK_PROBE_PORT": "0",
            },
        )

    async def _keep(self, data: Path, config: Path) -> None:
        while self._child is not None:
            code = await self._child.ended()
            log.warning("the demo's connector has ended (exit code %s); another starts", code)
            await self._begin(data, config)
