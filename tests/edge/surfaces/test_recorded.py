"""Clients get every recorded stream of ADK and Agno, and that of ADK's document, unchanged."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.sse import Parser
from support.drive.agno_surface import CONFIG
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.repository import ROOT
from support.fakes.pretend import PretendRun

GOLDEN = ROOT / "tests/golden"
DOCUMENT = ROOT / "tests/conformance/documents/adk.sse"
ADK = sorted(GOLDEN.glob("adk/*/*.sse"))
AGNO = sorted(GOLDEN.glob("agno/*/*.sse"))
PATHS = {"team": "/teams/crew", "wf": "/workflows/flow"}
ASKED = {
    "appName": "vana",
    "userId": "u",
    "sessionId": "s",
    "newMessage": {"role": "user", "parts": [{"text": "hi"}]},
}


def in_pieces(body: bytes) -> list[bytes]:
    """Cut the body at random places, mostly within frames; the same body is always cut alike."""
    cuts = sorted(random.Random(len(body)).sample(range(len(body) + 1), min(3, len(body))))
    edges = [0, *cuts, len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges) if start < end]


async def passed(edge: Client, bus: Bus, recording: Path, path: str, **request: Any) -> bytes:
    """Return the body that a client gets when the upstream sends this recording."""
    async with Stream(edge, "POST", path, **request) as stream:
        assert stream.response.status_code == 200
        await PretendRun(bus, stream.run_id).leg(*in_pieces(recording.read_bytes()))
        await stream.rest()
    return stream.body


def test_there_are_recordings() -> None:
    assert len(ADK) > 40
    assert len(AGNO) > 80


@pytest.mark.timeout(180)
async def test_every_recorded_stream_of_adk_passes_byte_for_byte(edge: Client, bus: Bus) -> None:
    for recording in ADK:
        body = await passed(edge, bus, recording, "/run_sse", json=ASKED)
        assert body == recording.read_bytes(), recording.name


@pytest.mark.timeout(180)
async def test_every_recorded_stream_of_agno_passes_byte_for_byte(
    make_edge: MakeEdge, bus: Bus
) -> None:
    edge, form = await make_edge(config=CONFIG), {"message": "hi", "stream": "true"}
    for recording in AGNO:
        path = PATHS.get(recording.name.split("_")[0], "/agents/assistant")
        body = await passed(edge, bus, recording, f"{path}/runs", data=form)
        assert body == recording.read_bytes(), recording.name


async def test_adks_own_kind_of_client_reads_what_we_read(edge: Client, bus: Bus) -> None:
    """The document's client splits on blank lines and takes the text after `data: `."""
    for recording in (DOCUMENT, *(GOLDEN / "adk/2.13.0").glob("*_stream.sse")):
        body = await passed(edge, bus, recording, "/run_sse", json=ASKED)
        split = [each.removeprefix(b"data: ") for each in body.split(b"\n\n") if each]
        assert split == [frame.data for frame in Parser().feed(body)], recording.name
        assert all(orjson.loads(data) for data in split)


async def test_the_documents_own_stream_passes_byte_for_byte(make_edge: MakeEdge, bus: Bus) -> None:
    edge = await make_edge()
    assert await passed(edge, bus, DOCUMENT, "/run_sse", json=ASKED) == DOCUMENT.read_bytes()
