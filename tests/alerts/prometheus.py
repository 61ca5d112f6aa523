"""A real Prometheus that scrapes the processes of a deployment and evaluates the alert rules."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.real import servers
from support.real.deployment import Instance
from support.real.ports import free_port

SCRAPE_S = 2


def program() -> str | None:
    """Return the path of the Prometheus that `make kubernetes` built, or of this machine's."""
    built = ROOT / ".penstock/kubernetes/bin/prometheus"
    return str(built) if built.exists() else shutil.which("prometheus")


@dataclass(frozen=True, slots=True)
class Line:
    """A series of an answer: its labels, and its points as seconds since 1970 and value."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    """The process and its HTTP interface."""

    def __init__(self, folder: Path, rules: Sequence[Path]) -> None:
        """Start Prometheus with these files of rules, and without targets."""
        folder.mkdir(parents=True)
        self._targets = folder / "targets.json"
        self.scrape(())
        config = {
            "global": {
                "scrape_interval": f"{SCRAPE_S}s",
                "scrape_timeout": f"{SCRAPE_S}s",
                "evaluation_interval": f"{SCRAPE_S}s",
            },
            "rule_files": [str(each) for each in rules],
            # As the chart's ServiceMonitor: a metric keeps its own label `service`.
            "scrape_configs": [
                {
                    "job_name": "penstock",
                    "honor_labels": True,
                    "file_sd_configs": [{"files": [str(self._targets)]}],
                }
            ],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        path, port = program(), free_port()
        assert path is not None
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self._process = servers.start(
            "prometheus",
            [
                path,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            log=folder / "prometheus.log",
            owner_pid=os.getpid(),
        )

    async def ready(self) -> None:
        """Wait until Prometheus answers."""

        async def answers() -> bool:
            try:
                return (await self.http.get("/-/ready")).is_success
            except httpx.HTTPError:
                return False

        await eventually(answers, 60, "Prometheus is ready")

    def scrape(self, instances: Sequence[Instance]) -> None:
        """Scrape these processes from now on. Prometheus watches the file."""
        found = [
            {
                "targets": [f"127.0.0.1:{each.probe_port}"],
                "labels": {
                    "service": each.service,
                    "pod": f"{each.service}-{each.probe_port}",
                    "namespace": "agents",
                },
            }
            for each in instances
        ]
        beside = self._targets.with_suffix(".new")
        beside.write_text(json.dumps(found))
        beside.rename(self._targets)

    async def _get(self, path: str, **query: object) -> Any:
        answer = await self.http.get(path, params={key: str(each) for key, each in query.items()})
        assert answer.is_success, f"{query}: {answer.text}"
        return answer.json()["data"]

    async def over(self, query: str, begin: float, end: float, step_s: float) -> list[Line]:
        """Return what a query gives over a time, without values that are no numbers."""
        found = await self._get(
            "/api/v1/query_range", query=query, start=begin, end=end, step=step_s
        )
        lines = []
        for each in found["result"]:
            points = [(float(at), float(value)) for at, value in each["values"]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            if points:
                lines.append(Line(each["metric"], points))
        return lines

    async def now(self, query: str) -> list[dict[str, str]]:
        """Return the labels of the series that a query gives now."""
        found = await self._get("/api/v1/query", query=query)
        return [each["metric"] for each in found["result"]]

    async def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their health."""
        found = await self._get("/api/v1/rules")
        return [rule for group in found["groups"] for rule in group["rules"]]

    async def stop(self) -> None:
        """End the process."""
        await self.http.aclose()
        self._process.stop()
