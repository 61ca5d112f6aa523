"""Restore the data of a released version on another bus: streams, messages and records.

`tests/golden/released/<version>.json` has this data for three runs through the released services:
one was paused and decided, one had no pause, and one still waits for its decision.
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
    """Return the data of this version."""
    found: Left = json.loads((FOLDER / f"{version}.json").read_text())
    return found


async def restore(bus: Bus, found: Left) -> None:
    """Make the streams with their configuration of that version; store all messages in order."""
    for config in found["streams"]:
        await bus.api(f"STREAM.CREATE.{config['name']}", config)
    for stream, messages in found["messages"].items():
        for message in messages:
            headers = dict(_kept(stream, message["headers"]))
            subject = _published(message["subject"])
            await bus.publisher.publish(Message(subject, message["payload"].encode(), headers))


def _published(subject: str) -> str:
    """Return the subject before RAW's transform."""
    tokens = subject.split(".")
    return ".".join(["raw", *tokens[2:]]) if tokens[0] == "rawp" else subject


def _kept(stream: str, headers: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        # Expected sequences stay valid only in RAW. A bucket no longer has the messages that it
        # replaced, so its sequences differ.
        if not name.startswith("Nats-") or (stream == "RAW" and "Expected" in name):
            yield name, value
