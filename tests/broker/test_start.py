"""A service starts while NATS is missing, not ready, or lacks something that the service needs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from penstock.service.key_service import wrapped_key
from support.drive.bus import make_streams
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.key_service import TOKEN, Transit, settings_for
from support.fakes.misbehaving import misbehaving
from support.real import servers
from support.real.nats import NatsServer
from support.real.ports import free_port

USERS = """accounts {
  ALL { jetstream: enabled, users: [ { user: all, password: right } ] }
  NONE { users: [ { user: none, password: right } ] }
}"""


@dataclass
class Starting:
    """A process of the approvals service, which starts fast."""

    process: servers.Process
    probes: str

    async def readiness(self) -> tuple[int, str]:
        async with httpx.AsyncClient() as http:
            try:
                answer = await http.get(f"{self.probes}/readyz")
            except httpx.HTTPError:
                return 0, ""
        return answer.status_code, str(answer.json()["services"]["approvals"])

    async def until(self, status: int, because: str = "") -> None:
        async def probe() -> bool:
            found, reasons = await self.readiness()
            return found == status and because in reasons

        await eventually(probe, 40, f"/readyz says {status} {because}")

    async def lives(self) -> bool:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{self.probes}/livez")).status_code == 200

    async def ended(self) -> int:
        async with asyncio.timeout(40):
            return await asyncio.to_thread(self.process.popen.wait)

    @property
    def log(self) -> list[str]:
        return self.process.log.read_text().splitlines()


@asynccontextmanager
async def starting(folder: Path, url: str, **settings: str) -> AsyncIterator[Starting]:
    config = folder / "penstock.yaml"
    config.write_text("agents: []\n")
    port = free_port()
    process = servers.start_python(
        "starting",
        ["-m", "penstock_approvals"],
        log=folder / "starting.log",
        env={
            "PENSTOCK_CONFIG": str(config),
            "PENSTOCK_NATS_URL": url,
            "PENSTOCK_PORT": "0",
            "PENSTOCK_PROBE_PORT": f"{port}",
            **{f"PENSTOCK_{name.upper()}": value for name, value in settings.items()},
        },
    )
    try:
        yield Starting(process, f"http://127.0.0.1:{port}")
    finally:
        await asyncio.to_thread(process.stop)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", config=USERS, users=False)
    server.start()
    yield server
    server.remove()


async def test_a_service_waits_for_an_unavailable_nats_and_stays_live(tmp_path: Path) -> None:
    """In Kubernetes, the order in which NATS and the services start is not defined."""
    port = free_port()
    nats = NatsServer(tmp_path / "nats", port=port, violations=True)
    async with starting(tmp_path, f"nats://127.0.0.1:{port}") as service:
        await service.until(503, "connects to NATS")
        # A restart by a liveness probe would not bring NATS back.
        assert await service.lives()
        nats.start()
        try:
            await service.until(503, "`penstock streams make`")  # a service may not make them
            await make_streams(nats.url)
            await service.until(200)
            nats.stop()
            await service.until(503, "NATS")
            assert await service.lives()
        finally:
            nats.remove()


async def test_a_service_waits_for_the_key_service_at_its_start_and_not_later(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    await make_streams(fresh_nats.url)
    port, keys = free_port(), Transit()
    async with misbehaving(port) as kms:
        kms.other = keys
        settings = settings_for(kms.url)
        word = await wrapped_key(settings)
    named = {"content_keys": word, "kms_url": str(settings.kms_url), "kms_token": TOKEN}
    async with starting(tmp_path, fresh_nats.url, **named) as service:
        await service.until(503, f"the key service at http://127.0.0.1:{port} does not answer")
        assert await service.lives()
        async with misbehaving(port) as kms:
            kms.other = keys
            await service.until(200)
        assert (await service.readiness())[0] == 200


@pytest.mark.chaos
async def test_while_it_waits_it_says_why_and_can_be_stopped(tmp_path: Path) -> None:
    async with starting(tmp_path, "nats://127.0.0.1:1") as service:
        await service.until(503, "cannot connect to NATS at nats://127.0.0.1:1")
        (line,) = [
            line for line in service.log if "approvals waits: cannot connect to NATS" in line
        ]
        assert "refused" in line
        service.process.popen.terminate()
        assert await service.ended() == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nats_user": "all", "nats_password": "wrong"}, "Authorization Violation"),
        ({"nats_user": "none", "nats_password": "right"}, "has no JetStream for this account"),
    ],
    ids=["wrong password", "no JetStream"],
)
async def test_what_does_not_change_by_itself_ends_the_start_in_one_clear_line(
    guarded: NatsServer, tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    async with starting(tmp_path, guarded.url, **settings) as service:
        assert await service.ended() == 2
        assert service.log[-1].startswith("penstock-approvals: ")
        assert says in service.log[-1]
        assert "Traceback" not in "\n".join(service.log)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("port", "Choose another port with PENSTOCK_PORT"),
        ("probe_port", "Choose another port with PENSTOCK_PROBE_PORT (0 takes a free one)"),
    ],
)
async def test_a_taken_port_is_told_with_its_variable_since_a_service_has_no_options(
    fresh_nats: NatsServer, tmp_path: Path, setting: str, says: str
) -> None:
    await make_streams(fresh_nats.url)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        taken = str(listener.getsockname()[1])
        async with starting(tmp_path, fresh_nats.url, **{setting: taken}) as service:
            assert await service.ended() == 2
    assert f"cannot listen on 127.0.0.1:{taken}" in service.log[-1]
    assert service.log[-1].endswith(says)


@pytest.mark.parametrize(
    ("argument", "code", "says"),
    in_short(
        [
            ("--help", 0, "PENSTOCK_"),
            ("--probe-port=0", 2, "unrecognized arguments: --probe-port=0"),
        ],
        [("--help", 0, "PENSTOCK_")],
    ),
)
def test_a_service_takes_no_arguments_and_shows_its_usage(
    argument: str, code: int, says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock_approvals", argument],
        env=os.environ | {"PENSTOCK_CONFIG": os.devnull, "PENSTOCK_NATS_URL": "nats://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == code
    assert told.startswith("usage: python -m penstock_approvals")
    assert says in told
