"""An older store put back under a stream: what a power cut, or a backup, leaves of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.real.nats import NatsServer


def copied(nats: NatsServer, *streams: str) -> Path:
    """The folders of these streams as they are now, consumers and all. The server may run."""
    number = len(list(nats.store.parent.glob("older-*")))
    kept = nats.store.parent / f"older-{number}"
    for stream in streams:
        _copy(_streams(nats) / stream, kept / stream)
    return kept


def put_back(nats: NatsServer, kept: Path, *streams: str) -> None:
    """Kill the server, replace these streams' folders by the copies, start it again."""
    nats.kill()
    for stream in streams:
        folder = _streams(nats) / stream
        shutil.rmtree(folder)
        _copy(kept / stream, folder)
    nats.start()


def _streams(nats: NatsServer) -> Path:
    """Where the one account's streams are."""
    (folder,) = nats.store.glob("**/streams")
    return folder


def _copy(source: Path, target: Path) -> None:
    # a file that a running server replaces meanwhile is copied again
    for attempt in range(5):
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            if attempt == 4:
                raise


def all_streams(nats: NatsServer) -> list[str]:
    """The streams that the server keeps, but for the leases, which end by themselves."""
    return sorted({each.name for each in _streams(nats).iterdir()} - {"KV_leases"})
