"""TLS to NATS works with a private authority and client certificates, and errors name the cause."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.bus import Bus, BusSettings, StartUpError
from penstock.bus.connection.settings import Tls
from support.drive.bus import event, new_run_id
from support.drive.waiting import eventually
from support.fakes.serving import close_after
from support.real.authority import Authority
from support.real.nats import NatsServer
from support.real.ports import free_port


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ours")


@pytest.fixture(scope="module")
def server(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server that requires a certificate of every client."""
    cert, key = ours.certify("nats")
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ours.file}", verify: true }}'
    server = NatsServer(tmp_path_factory.mktemp("tls"), name="nats with TLS", config=tls)
    server.start()
    yield server
    server.remove()


def client(ours: Authority) -> Tls:
    cert, key = ours.certify("client")
    return Tls(str(ours.file), cert, key)


async def refusal(url: str, tls: Tls) -> str:
    """Return the error of a start, which must fail at once because a retry could not succeed."""
    async with asyncio.timeout(30):
        with pytest.raises(StartUpError) as refused:
            await Bus.connect(BusSettings(url=url, tls=tls), ensure=False)
    return str(refused.value)


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_with_its_authority_and_a_certificate_of_its_own_the_bus_works(
    server: NatsServer, ours: Authority, scheme: str
) -> None:
    url = server.url.replace("nats:", f"{scheme}:")
    bus = await Bus.connect(BusSettings(url=url, tls=client(ours)))
    run_id = new_run_id()
    assert await bus.publisher.publish(event(run_id, 1)) > 0
    await bus.client.connect_anew()  # the reconnect uses TLS as well

    async def back() -> bool:
        return bus.is_ready

    await eventually(back, what="the reconnection")
    assert await bus.publisher.publish(event(run_id, 2)) > 0
    await bus.close()


async def test_a_connection_that_is_closing_is_not_closed_again(
    server: NatsServer, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python 3.11.2, a TLS transport that is closed while it is closing cannot be aborted."""
    bus = await Bus.connect(BusSettings(url=server.url, tls=client(ours)), ensure=False)
    wire = bus.jetstream.connection._wire
    transport = wire._transport
    assert transport is not None
    closed: list[str] = []
    monkeypatch.setattr(transport, "close", lambda: closed.append("close"))
    wire.abort()
    wire.close()
    wire.abort()
    assert closed == []
    await bus.close()


async def test_a_server_of_another_authority_is_not_trusted(
    server: NatsServer, ours: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    for url, tls in (
        (server.url, Tls(str(other.file), *other.certify("client"))),
        (server.url.replace("nats:", "tls:"), Tls()),
        (server.url, Tls()),
    ):
        assert "set PENSTOCK_NATS_TLS_CA" in await refusal(url, tls)


async def test_a_name_that_the_certificate_does_not_have_is_refused(
    ours: Authority, tmp_path: Path
) -> None:
    cert, key = ours.certify("elsewhere", "10.0.0.1")
    server = NatsServer(tmp_path, config=f'tls {{ cert_file: "{cert}", key_file: "{key}" }}')
    server.start()
    try:
        said = await refusal(server.url, Tls(str(ours.file)))
    finally:
        server.remove()
    assert "use a name that the certificate has in PENSTOCK_NATS_URL" in said


async def test_a_client_without_a_valid_certificate_gets_an_error(
    server: NatsServer, ours: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    for tls in (Tls(str(ours.file)), Tls(str(ours.file), *other.certify("client"))):
        assert "PENSTOCK_NATS_TLS_CERT" in await refusal(server.url, tls)


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_no_password_goes_to_a_server_without_tls(ours: Authority, scheme: str) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.15.1", "max_payload": 1048576}\r\n')
        sent = await reader.read()
        writer.close()
        await writer.wait_closed()
        heard.set_result(sent)

    listening = await asyncio.start_server(close_after(serve), "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    settings = BusSettings(url=url, user="edge", password="secret", tls=client(ours))
    with pytest.raises(StartUpError, match=r"does not ask for TLS.*Switch TLS on"):
        await Bus.connect(settings, ensure=False)
    assert b"secret" not in await heard
    listening.close()
    await listening.wait_closed()


async def test_files_that_cannot_be_used_are_named_with_their_setting(
    ours: Authority, tmp_path: Path
) -> None:
    cert, key = ours.certify("client")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    none = str(tmp_path / "none.pem")
    for tls, told in (
        (Tls(none), f"PENSTOCK_NATS_TLS_CA: cannot use {none}: No such file"),
        (Tls(str(garbage)), "PENSTOCK_NATS_TLS_CA: cannot use"),
        (Tls(None, cert, str(garbage)), "PENSTOCK_NATS_TLS_CERT and PENSTOCK_NATS_TLS_KEY: cannot"),
        (Tls(None, cert), "PENSTOCK_NATS_TLS_CERT and PENSTOCK_NATS_TLS_KEY: set both"),
        (Tls(None, None, key), "PENSTOCK_NATS_TLS_CERT and PENSTOCK_NATS_TLS_KEY: set both"),
    ):
        assert told in await refusal("nats://127.0.0.1:1", tls)


async def test_a_service_takes_them_from_its_settings(
    server: NatsServer, ours: Authority, tmp_path: Path
) -> None:
    operator = client(ours)
    bus = await Bus.connect(BusSettings(url=server.url, tls=operator))
    await bus.close()
    port = free_port()
    cert, key = ours.certify("approvals")
    settings = {
        "PENSTOCK_CONFIG": os.devnull,
        "PENSTOCK_NATS_URL": server.url,
        "PENSTOCK_NATS_TLS_CA": str(ours.file),
        "PENSTOCK_NATS_TLS_CERT": cert,
        "PENSTOCK_NATS_TLS_KEY": key,
        "PENSTOCK_PORT": "0",
        "PENSTOCK_PROBE_PORT": str(port),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock_approvals"], env=os.environ | settings, stderr=log
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as probes:

            async def ready() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    return (await probes.get("/readyz")).is_success
                except httpx.HTTPError:
                    return False

            await eventually(ready, 30, "approvals over TLS")
    finally:
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
