"""Put back an older store of a stream, as after a power cut or from a backup."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.real.nats import NatsServer


def copied(nats: NatsServer, *streams: str) -> Path:
    """Copy the folders of these streams with their consumers. The server may run."""
    number = len(list(nats.store.parent.glob("older-*")))
    kept = nats.store.parent / f"older-{number}"
    for stream in streams:
        _copy(_streams(nats) / stream, kept / stream)
    return kept


def put_back(nats: NatsServer, kept: Path, *streams: str) -> None:
    """Kill the server, replace these streams' folders by the copies, and start it again."""
    nats.kill()
    for stream in streams:
        folder = _streams(nats) / stream
        shutil.rmtree(folder)
        _copy(kept / stream, folder)
    nats.start()


def _streams(nats: NatsServer) -> Path:
    """Return the folder of the streams; the server has one account."""
    (folder,) = nats.store.glob("**/streams")
    return folder


def _copy(source: Path, target: Path) -> None:
    # A running server may replace a file during the copy; the copy is then repeated.
    for attempt in range(5):
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            if attempt == 4:
                raise


def all_streams(nats: NatsServer) -> list[str]:
    """Return the server's streams without that of the leases, which expire by themselves."""
    return sorted({each.name for each in _streams(nats).iterdir()} - {"KV_leases"})
