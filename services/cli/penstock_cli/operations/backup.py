"""Write all streams of a deployment into a folder, and restore them into an empty NATS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.bus import Bus, StartUpError, streams
from penstock.bus.admin import backup
from penstock.bus.admin.configuration import declared
from penstock.bus.admin.ensure import ensure, shards_of
from penstock.bus.errors import ApiError
from penstock_cli.operations.connection import DONE
from penstock_cli.terminal.output import Output

# The index of a backup. This file is written last, so a folder without it is no complete backup.
INDEX: Final = "penstock-backup.json"
DESCRIPTION, CONTENT = "backup.json", "stream.tar.s2"  # two files in the folder of each stream


async def save(bus: Bus, output: Output, folder: Path) -> int:
    """Copy every stream and bucket into the folder, while the services run."""
    if folder.exists() and any(folder.iterdir()):
        raise StartUpError(f"{folder} is not empty: name a new folder for the backup")
    shards = await shards_of(bus)
    names = [config["name"] for config in declared(bus.settings.retention, shards.made)]
    begun_at = datetime.now(UTC).isoformat()
    copied = []
    for name in backup.in_order(names):
        if not await bus.has(name):
            continue
        at = folder / name
        # A backup contains prompts and answers, so only its owner may read the folder.
        at.mkdir(parents=True, mode=0o700)
        with (at / CONTENT).open("wb") as file:
            described = await backup.snapshot(bus, name, file.write)
        (at / DESCRIPTION).write_text(json.dumps(described))
        copied.append(name)
        size = (at / CONTENT).stat().st_size
        _report(output, name, described["state"], size)
    index = {"begun_at": begun_at, "schema": streams.SCHEMA, "streams": copied}
    (folder / INDEX).write_text(json.dumps(index))
    folder.chmod(0o700)
    return DONE


async def restore_all(
    bus: Bus, output: Output, folder: Path, lost: int, replicas: int | None = None
) -> int:
    """Restore every stream of a backup into a NATS that has none of these streams.

    `lost` is the greatest number of events that each EVENTS stream may have got after the backup.
    `replicas` is the number of replicas of each stream; None for the number in the backup.

    Raises:
        StartUpError: the backup is not whole, or this NATS cannot take it.
    """
    index = _index(folder)
    names = index["streams"]
    if there := [name for name in names if await bus.has(name)]:
        raise StartUpError(
            f"this NATS has {', '.join(there[:3])}{' and more' * (len(there) > 3)} already: a "
            "backup is restored into an empty NATS, before any service starts. Nothing was changed"
        )
    ends: dict[str, int] = {}
    most = 1
    for name in names:
        described = json.loads((folder / name / DESCRIPTION).read_text())
        config = described["config"]
        if replicas is not None:
            config["num_replicas"] = replicas
        most = max(most, config["num_replicas"])
        try:
            await backup.restore(bus, name, described, _parts(folder / name / CONTENT))
        except ApiError as error:
            if ends or most == 1:
                raise
            raise StartUpError(
                f"{error}. {name} has {most} replicas: this NATS needs as many servers with room, "
                "or restore with `--replicas 1`. Nothing was changed"
            ) from error
        ends[name] = int(described["state"]["last_seq"])
        _report(output, name, described["state"], (folder / name / CONTENT).stat().st_size)
    # The backup lacks the leases, and streams that a later version has added. The leases and these
    # streams get as many replicas as the other streams. If the bucket of leases had only one
    # replica, all services would stop whenever the server of this replica is away.
    await ensure(bus, replace(bus.settings.retention, replicas=most))
    await backup.leave_out(bus, ends, lost)
    if not output.as_json:
        output.notice(f"restored the backup of {index['begun_at']}; now start the services")
    return DONE


def _index(folder: Path) -> dict[str, Any]:
    """Return the index of a backup.

    Raises StartUpError if the backup is not complete, or has a newer schema.
    """
    try:
        index: dict[str, Any] = json.loads((folder / INDEX).read_text())
        parts = [folder / name / file for name in index["streams"] for file in _FILES]
    except (OSError, ValueError, KeyError) as error:
        raise StartUpError(
            f"{folder} is no complete backup of `penstock streams backup`: {error}"
        ) from error
    if index["schema"] > streams.SCHEMA:
        raise StartUpError(
            f"the backup has schema {index['schema']}, and this version only knows "
            f"{streams.SCHEMA}: restore it with the version that made it, or a later one"
        )
    if missing := [str(part) for part in parts if not part.is_file()]:
        raise StartUpError(f"the backup lacks {', '.join(missing[:3])}. Nothing was changed")
    return index


_FILES: Final = (DESCRIPTION, CONTENT)


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(backup.CHUNK_BYTES):
            yield part


def _report(output: Output, stream: str, state: dict[str, Any], size: int) -> None:
    output.result(
        {"stream": stream, "messages": state["messages"], "bytes": size},
        f"{stream}: {state['messages']} messages, {size} bytes",
    )
