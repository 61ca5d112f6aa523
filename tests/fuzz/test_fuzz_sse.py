"""The parser of `text/event-stream` equals a simple reader written after the specification."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from fuzz import cases
from fuzz.hostile import Hostile, cut
from fuzz.recorded import PROTOCOLS, recorded
from penstock.sse import Frame, FrameTooLarge, Parser, encode

QUICK_CASES = 3000


def by_the_letter(body: bytes) -> list[Frame]:
    """Parse as WHATWG HTML 9.2.6 says, without regard to speed or chunks."""
    body = body.removeprefix(b"\xef\xbb\xbf")
    *lines, _ = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    frames: list[Frame] = []
    data: list[bytes] = []
    rest: dict[bytes, bytes] = {}
    for line in lines:
        if not line:
            if data:
                retry = rest.get(b"retry")
                frames.append(
                    Frame(
                        b"\n".join(data),
                        _text(rest.get(b"event")),
                        _text(rest.get(b"id")),
                        int(retry) if retry else None,
                    )
                )
            data, rest = [], {}
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        counts = {
            b"event": True,
            b"id": b"\0" not in value,
            b"retry": value.isdigit() and len(value) <= 15,
        }
        if name == b"data":
            data.append(value)
        elif counts.get(name):
            rest[name] = value
    return frames


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def read(chunks: Iterable[bytes], max_frame_bytes: int) -> tuple[list[Frame], bool]:
    """Return the frames, and whether a frame exceeded the limit."""
    parser, frames = Parser(max_frame_bytes), []
    try:
        for chunk in chunks:
            frames += parser.feed(chunk)
    except FrameTooLarge as error:
        return frames + error.frames, True
    return frames, False


def case(rng: random.Random) -> None:
    """Parse one body as a whole, in chunks and with a limit, and write its frames again."""
    make = Hostile(rng, recorded(rng.choice(sorted(PROTOCOLS))))
    body = rng.choice((make.noise, make.noise, make.damaged))()
    frames, _ = read([body], len(body) + 1)
    assert frames == by_the_letter(body), body
    assert read(cut(rng, body), len(body) + 1) == (frames, False), body
    limit = rng.randrange(1, 60)
    assert read(cut(rng, body), limit) == read([body], limit), (body, limit)
    for frame in frames:
        if frame.event is None or not set(frame.event) & set("\r\n\0"):
            wire = encode(frame.data, event=frame.event)
            assert by_the_letter(wire) == [Frame(frame.data, frame.event)], body


def test_hostile_bytes_are_read_by_the_letter_in_any_chunks() -> None:
    cases.run(case, cases.QUICK_SEED, QUICK_CASES, "hostile_bytes")


@pytest.mark.chaos
def test_chaos_hostile_bytes_are_read_by_the_letter() -> None:
    seed = cases.chaos_seed()
    print(f"\nPENSTOCK_CHAOS_SEED={seed}")
    cases.run(case, seed, cases.how_many(0.3), "hostile_bytes")
