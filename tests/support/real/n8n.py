"""A real n8n on a free port, with workflows and credentials that are imported before its start."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from support.drive.repository import ROOT
from support.drive.waiting import wait_for
from support.real import servers
from support.real.ports import free_port

PROGRAM = ROOT / ".penstock" / "n8n" / "node_modules" / ".bin" / "n8n"
_START_TIMEOUT_S = 240


class N8n:
    """One n8n with SQLite. It keeps its port and its data over restarts."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        self._process: servers.Process | None = None
        port = self.url.rpartition(":")[2]
        self._env = {
            "N8N_USER_FOLDER": str(folder),
            "N8N_PORT": port,
            "N8N_RUNNERS_BROKER_PORT": str(free_port()),
            "N8N_LISTEN_ADDRESS": "127.0.0.1",
            "N8N_HOST": "127.0.0.1",
            "N8N_DIAGNOSTICS_ENABLED": "false",
            "N8N_VERSION_NOTIFICATIONS_ENABLED": "false",
            "N8N_PERSONALIZATION_ENABLED": "false",
            # SQLite allows one writer. With several executions at once, Remove Duplicates fails.
            "N8N_CONCURRENCY_PRODUCTION_LIMIT": "1",
        }

    def install(
        self, workflows: Mapping[str, Mapping[str, Any]], credentials: Sequence[Mapping[str, Any]]
    ) -> None:
        """Import and activate workflows, by their ids, and their credentials."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, content in (
            ("credentials", credentials),
            ("workflows", [{**flow, "id": id} for id, flow in workflows.items()]),
        ):
            file = self._folder / f"{name}.json"
            file.write_text(json.dumps(content))
            self._run(f"import:{name[:-1]}" if name == "workflows" else f"import:{name}", file)
        for id in workflows:
            self._run("publish:workflow", None, f"--id={id}")

    def _run(self, command: str, file: Path | None, *more: str) -> None:
        arguments = [f"--input={file}"] if file is not None else []
        done = subprocess.run(
            [PROGRAM, command, *arguments, *more],
            env=os.environ | self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start n8n; return when its workflows are active."""
        log = self._folder / "n8n.log"
        before = log.read_text().count("Editor is now accessible") if log.exists() else 0
        self._process = servers.start(
            "n8n", [PROGRAM, "start"], log=log, owner_pid=os.getpid(), env=self._env
        )

        def ready() -> bool:
            assert self._process is not None
            if self._process.popen.poll() is not None:
                raise RuntimeError(servers.tail(log))
            if log.read_text().count("Editor is now accessible") <= before:
                return False
            return httpx.get(f"{self.url}/healthz/readiness").is_success

        wait_for(ready, _START_TIMEOUT_S, "n8n")

    def stop(self) -> None:
        """Stop n8n with SIGTERM."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def log(self) -> str:
        """Return what n8n has printed."""
        return (self._folder / "n8n.log").read_text()

    def executions(self, workflow: str) -> list[tuple[str, str]]:
        """Return id and status of each execution of a workflow, the oldest first."""
        with closing(sqlite3.connect(self._folder / ".n8n" / "database.sqlite")) as database:
            found = database.execute(
                "SELECT id, status FROM execution_entity WHERE workflowId = ? ORDER BY id",
                (workflow,),
            ).fetchall()
        return [(str(id), status) for id, status in found]
