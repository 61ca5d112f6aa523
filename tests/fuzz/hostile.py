"""Make hostile streams: noise, damaged recordings, and well-formed but contradictory frames.

Everything is drawn from one `random.Random`, so that a seed gives the same stream again.
"""

from __future__ import annotations

import copy
import json
import random
import re
import string
from collections.abc import Callable
from typing import Any

from fuzz.recorded import Recorded

MAX_FRAMES = 14
LONG = 64 * 1024
# nesting depths: some can be read and written, some only read, and some neither
DEEP = (8, 60, 195, 252, 300, 1100)

_TOKENS = (
    *(b"data: ", b"data:", b"data", b"event: ", b"event", b"id: ", b"id:", b"retry: ", b": "),
    *(b"\n", b"\n", b"\n\n", b"\r\n", b"\r", b"\r\r", b"\r\n\r\n", b"\0", b"\xef\xbb\xbf"),
    *(b"\xef\xbb", b"\xff", b"\xc3", "\u2028\u2029\u0085".encode(), b"{", b"}", b"[", b'"'),
    *(b'{"type":"CUSTOM"}', b'{"event":"RunContent"}', b'{"author":"a"}', b"null", b"1e999"),
)
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 1.5, 1e308, -0.0, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "\ud800", "a\udfffb", "\u2028\u0085", "\ufeff", "é" * 200, "#2", "a#2", "/"),
    *("a\nb\r\nevent: x", "../..", "*", ">", "a.b", "true", "{'a': (1, 2)}", '{"a": [1]}'),
    *([], {}, [[]], [None], [{}], {"": None}, {"a": {"b": [1, {"c": "d"}]}}),
)
_DEEP_MARK = re.compile(r'"deep (o|a) (\d+)"')


class Hostile:
    """Make response bodies of one protocol."""

    def __init__(self, rng: random.Random, recorded: Recorded) -> None:
        self._rng = rng
        self._recorded = recorded
        # values seen in this stream, which are used again so that ids repeat
        self._words: list[Any] = ["1", "c1", "m1"]

    def body(self) -> bytes:
        """Return one response body."""
        make = self._rng.choices((self.noise, self.damaged, self.assembled), (1, 4, 5))[0]
        return make()

    def noise(self) -> bytes:
        """Return bytes, many of which have a meaning in `text/event-stream`."""
        rng = self._rng
        if rng.random() < 0.2:
            return rng.randbytes(rng.randrange(200))
        tokens = [rng.choice(_TOKENS) for _ in range(rng.randrange(60))]
        return b"".join(rng.randbytes(2) if rng.random() < 0.05 else token for token in tokens)

    def damaged(self) -> bytes:
        """Return a part of a recording with lost, repeated, reordered and changed frames."""
        rng = self._rng
        frames = rng.choice(self._recorded.bodies).split(b"\n\n")
        start = rng.randrange(max(1, len(frames) - MAX_FRAMES)) if rng.random() < 0.5 else 0
        frames = frames[start : start + MAX_FRAMES] + frames[-1:]
        for _ in range(rng.randrange(4)):
            _shuffle(rng, frames)
        body = b"\n\n".join(frames)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 8))):
            body = _hurt(rng, body)
        return body

    def assembled(self) -> bytes:
        """Return frames of all recordings in any order, with values of other types in any place."""
        rng = self._rng
        kinds = rng.choices(self._recorded.kinds, k=rng.randrange(1, MAX_FRAMES))
        return b"".join(self._frame(*rng.choice(kind)) for kind in kinds)

    def _frame(self, name: str | None, body: Any) -> bytes:
        rng = self._rng
        body = copy.deepcopy(body)
        for _ in range(rng.choice((0, 0, 1, 2, 5))):
            body = self._changed(body)
        text = _deepened(json.dumps(body, ensure_ascii=rng.random() < 0.5))
        if rng.random() < 0.1:
            text = self._with_repeated_key(text)
        data = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.05:
            data = data.replace(b", ", b",\ndata: ")  # one frame with many data lines
        head = f"event: {name}\n".encode() if name is not None else b""
        end = rng.choice((b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"))
        return head + b"data: " + data + end

    def _changed(self, value: Any) -> Any:
        """Return the value with one place in it changed; places near the top are the likeliest."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.95:
            key = rng.choice(list(value))
            if isinstance(value[key], str):
                self._words.append(value[key])
            change = rng.random()
            if change < 0.15:
                del value[key]
            elif change < 0.25:
                value[self._any_key()] = value.pop(key)
            elif isinstance(value[key], dict | list) and change < 0.7:
                value[key] = self._changed(value[key])
            else:
                value[key] = self._anything()
            return value
        if isinstance(value, list) and value and rng.random() < 0.9:
            at = rng.randrange(len(value))
            value[at : at + 1] = rng.choice(
                (lambda: [], lambda: [self._changed(value[at])] * 2, lambda: [self._anything()])
            )()
            return value
        return self._anything()

    def _anything(self) -> Any:
        rng = self._rng
        kind = rng.random()
        if kind < 0.7:
            return copy.deepcopy(rng.choice(_ODD))
        if kind < 0.95:
            return rng.choice(self._words)
        if kind < 0.98:
            return f"deep {rng.choice('oa')} {rng.choice(DEEP)}"
        return "k" * rng.choice((1000, LONG))

    def _any_key(self) -> str:
        rng = self._rng
        keys = ("", "\0", "\ud800", "type", "event", "k" * LONG, rng.choice(string.ascii_letters))
        return rng.choice(keys)

    def _with_repeated_key(self, text: str) -> str:
        if not text.startswith("{") or text == "{}":
            return text
        key = text[1:].partition(":")[0]
        return f"{{{key}: {json.dumps(self._anything())}, {text[1:]}"


def _deepened(text: str) -> str:
    """Replace the marks by deeply nested values, which no JSON library can write."""
    return _DEEP_MARK.sub(lambda found: _nested(int(found[2]), found[1] == "o"), text)


def _nested(levels: int, objects: bool) -> str:
    return '{"a":' * levels + "1" + "}" * levels if objects else "[" * levels + "]" * levels


def _shuffle(rng: random.Random, frames: list[bytes]) -> None:
    at, to = rng.randrange(len(frames)), rng.randrange(len(frames))
    match rng.randrange(5):
        case 0:
            del frames[at]
        case 1:
            frames.insert(to, frames[at])
        case 2:
            frames[at], frames[to] = frames[to], frames[at]
        case 3:
            frames.append(frames[at])  # may repeat the end, or put a frame after the end
        case 4:
            frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
    if not frames:
        frames.append(b"")


def _hurt(rng: random.Random, body: bytes) -> bytes:
    at = rng.randrange(len(body) + 1)
    before, after = body[:at], body[at:]
    hurts: tuple[Callable[[], bytes], ...] = (
        lambda: before,
        lambda: before + bytes(byte ^ (1 << rng.randrange(8)) for byte in after[:1]) + after[1:],
        lambda: before + rng.choice(_TOKENS) + after,
        lambda: before + after[rng.randrange(20) :],
        lambda: body.replace(b"\n", rng.choice((b"\r", b"\r\n"))),
        lambda: b"\xef\xbb\xbf" + body,
        lambda: before + rng.randbytes(3) + after,
    )
    return rng.choice(hurts)()


def cut(rng: random.Random, body: bytes) -> list[bytes]:
    """Return the body in pieces: as a whole, in single bytes, or cut at random places."""
    kind = rng.random()
    if kind < 0.1 and len(body) < 600:
        return [body[at : at + 1] for at in range(len(body))]
    if kind < 0.2:
        return [body]
    marks = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(1, 12)))
    return [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True)]
