"""The embedded NATS server starts, keeps its data, locks its folder and ends with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import nats
import pytest
from typer.testing import CliRunner

from penstock.bus import Bus, BusSettings, StartUpError
from penstock.bus.admin.permissions import NAMES
from penstock_cli.local import embedded_nats
from penstock_cli.local.child import StartFailed
from penstock_cli.local.embedded_nats import EmbeddedNats, credentials
from penstock_cli.main import app
from support.drive.waiting import eventually

OWNER = """
import asyncio, sys
from pathlib import Path
from penstock_cli.local.embedded_nats import EmbeddedNats

async def main() -> None:
    server = EmbeddedNats(Path(sys.argv[1]))
    await server.start()
    print(server.url, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """Run an embedded NATS server."""
    server = EmbeddedNats(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


def as_user(data: Path, user: str = "operator") -> dict[str, str]:
    """Return nats-py's options for logging in as this user of the server with this data folder."""
    return {"user": user, "password": (credentials(data) / user).read_text().strip()}


async def store(url: str, text: bytes, data: Path) -> None:
    client = await nats.connect(url, **as_user(data))
    await client.jetstream().add_stream(name="S", subjects=["s"])
    await client.jetstream().publish("s", text)
    await client.close()


async def stored(url: str, data: Path) -> bytes | None:
    client = await nats.connect(url, **as_user(data))
    try:
        return (await client.jetstream().get_msg("S", 1)).data
    finally:
        await client.close()


async def test_a_second_start_on_the_same_data_continues(server: EmbeddedNats) -> None:
    await store(server.url, b"kept", server.data)
    await server.stop()
    await server.start()
    assert await stored(server.url, server.data) == b"kept"


async def test_it_listens_on_loopback_only(server: EmbeddedNats) -> None:
    assert server.url.startswith("nats://127.0.0.1:")


async def test_data_in_use_is_refused_and_names_who_uses_it(
    server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_nats, "LOCK_TIMEOUT_S", 0.0)
    second = EmbeddedNats(server.data)
    with pytest.raises(StartFailed, match=rf"in use by another penstock \(process {os.getpid()}\)"):
        await second.start()
    await second.stop()
    await store(server.url, b"unharmed", server.data)


async def test_a_server_that_cannot_start_tells_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "jetstream").write_text("a file where the store should be")
    with pytest.raises(StartFailed, match=r"(?s)nats-server ended at once.*not a directory"):
        await EmbeddedNats(tmp_path).start()


async def test_a_server_that_does_not_come_up_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\necho dreaming\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(embedded_nats, "binary", lambda: str(sleeper))
    monkeypatch.setattr(embedded_nats, "START_TIMEOUT_S", 2)
    with pytest.raises(StartFailed, match=r"(?s)did not come up within 2 s.*dreaming"):
        await EmbeddedNats(tmp_path / "data").start()


async def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StartFailed, match="cannot use"):
        await EmbeddedNats(tmp_path / "data").start()


async def test_a_server_that_dies_is_started_again_at_the_same_address(
    server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded_nats, "RESTART_PAUSE_S", 0.0)
    client = await nats.connect(
        server.url,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
        **as_user(server.data),
    )
    await store(server.url, b"kept", server.data)
    keeping = asyncio.create_task(server.keep())
    [ports] = (server.data / "nats").glob("*.ports")
    os.kill(int(ports.stem.rsplit("_", 1)[1]), signal.SIGKILL)

    async def back() -> bool:
        return client.stats["reconnects"] > 0 and client.is_connected

    await eventually(back, what="the client's reconnection")
    assert await stored(server.url, server.data) == b"kept"
    assert "it is started again" in caplog.text
    await client.close()
    keeping.cancel()


async def test_it_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().decode().strip()
        await store(url, b"kept", tmp_path)
        owner.kill()
    host, _, port = url.removeprefix("nats://").partition(":")
    address = (host, int(port))

    async def gone() -> bool:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return True
        return False

    await eventually(gone, what="the server's end")
    second = EmbeddedNats(tmp_path)
    await second.start()  # the folder is unlocked and has the data of the first server
    assert await stored(second.url, tmp_path) == b"kept"
    await second.stop()


async def test_what_it_acknowledges_is_on_the_disk_unless_told_otherwise(tmp_path: Path) -> None:
    for folder, given, always in (("a", (), True), ("b", ("10s",), False)):
        server = EmbeddedNats(tmp_path / folder, *given)
        await server.start()
        config = (tmp_path / folder / "nats" / "nats.conf").read_text()
        await server.stop()
        assert ("sync_interval: always" in config) is always
        assert ("sync_interval: 10s" in config) is not always


@pytest.mark.parametrize("text", ["", "soon", "0s", "10", "1s }"])
def test_a_sync_interval_that_nats_does_not_take_is_refused_before_anything_starts(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(ValueError, match="write `always`, or a time"):
        EmbeddedNats(tmp_path / "data", text)
    told = CliRunner().invoke(app, ["up", "--nats-sync", text])
    assert told.exit_code == 2
    assert not (tmp_path / "data").exists()


async def test_its_files_are_their_owners_alone(server: EmbeddedNats) -> None:
    await store(server.url, b"secret", server.data)
    folders = [server.data / name for name in ("nats", "credentials", "logs")]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    files = [*credentials(server.data).iterdir(), server.data / "nats" / "nats.conf"]
    assert {file.name for file in files} == {*NAMES, "nats.conf"}
    assert {file.stat().st_mode & 0o777 for file in [*files, server.data / "lock"]} == {0o600}


async def test_files_that_others_could_read_are_closed_to_them(tmp_path: Path) -> None:
    for folder in ("nats", "credentials"):
        (tmp_path / folder).mkdir()
    (tmp_path / "nats" / "nats.conf").write_text("of a former version")
    (tmp_path / "credentials" / "edge").write_text("mine")
    (tmp_path / "credentials" / "edge").chmod(0o644)
    server = EmbeddedNats(tmp_path)
    await server.start()
    try:
        assert (tmp_path / "nats" / "nats.conf").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "credentials" / "edge").stat().st_mode & 0o777 == 0o600
        client = await nats.connect(server.url, **as_user(tmp_path, "edge"))
        await client.close()
    finally:
        await server.stop()


async def refusal(url: str, **login: str) -> str:
    """Return the error text of a connection that the server refuses."""
    with pytest.raises(StartUpError, match="Authorization Violation") as refused:
        await Bus.connect(BusSettings(url=url, **login), ensure=False)  # type: ignore[arg-type]
    return str(refused.value)


async def test_a_password_outlives_a_restart_and_is_made_anew_when_its_file_is_deleted(
    server: EmbeddedNats,
) -> None:
    before = {user: as_user(server.data, user)["password"] for user in NAMES}
    assert len(set(before.values())) == len(NAMES)
    (credentials(server.data) / "edge").unlink()
    await server.stop()
    await server.start()
    after = {user: as_user(server.data, user)["password"] for user in NAMES}
    assert {user for user in NAMES if before[user] != after[user]} == {"edge"}
    assert await refusal(server.url, user="edge", password=before["edge"])


async def test_nobody_without_a_password_gets_in(server: EmbeddedNats) -> None:
    said = await refusal(server.url)
    assert "a client without a user" in said
    assert "PENSTOCK_NATS_PASSWORDS" in said


async def test_it_listens_at_the_given_address(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartFailed, match=f"port {port} is taken.*--nats-port"):
            await EmbeddedNats(tmp_path, port=port).start()
    server = EmbeddedNats(tmp_path, port=port)
    await server.start()
    assert server.url == f"nats://127.0.0.1:{port}"
    await server.stop()
