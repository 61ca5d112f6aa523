"""What a released version left on a bus, put onto another one: streams, messages and records.

`tests/golden/released/<version>.json` holds all of it: three runs through the released services,
one of which was paused and decided, one plain, and one that still waits for its decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock.bus import Bus, Message
from support.drive.repository import ROOT

FOLDER = ROOT / "tests" / "golden" / "released"
VERSIONS = sorted(path.stem for path in FOLDER.glob("*.json"))

Left = dict[str, Any]


def left(version: str) -> Left:
    """The whole of it."""
    found: Left = json.loads((FOLDER / f"{version}.json").read_text())
    return found


async def restore(bus: Bus, found: Left) -> None:
    """Make the streams as they were made then, and store everything in its order."""
    for config in found["streams"]:
        await bus.api(f"STREAM.CREATE.{config['name']}", config)
    for stream, messages in found["messages"].items():
        for message in messages:
            headers = dict(_kept(stream, message["headers"]))
            subject = _published(message["subject"])
            await bus.publisher.publish(Message(subject, message["payload"].encode(), headers))


def _published(subject: str) -> str:
    """The subject before RAW's transform."""
    tokens = subject.split(".")
    return ".".join(["raw", *tokens[2:]]) if tokens[0] == "rawp" else subject


def _kept(stream: str, headers: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        # only in RAW do the sequences come out the same: a bucket has forgotten what it replaced
        if not name.startswith("Nats-") or (stream == "RAW" and "Expected" in name):
            yield name, value
