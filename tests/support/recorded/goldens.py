"""Compare recorded upstream streams with a decoder's output, one JSON line per draft.

A scenario is one run: the stream of its start and of each continue, with the decisions between
them. `UPDATE_GOLDENS=1` rewrites the golden files; read the difference before you commit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.dialects.base import Decoder, Draft, Pause
from penstock.sse import Parser

Decisions = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Scenario:
    """One run. `decisions[i]` has the decisions before leg `i + 2`, by item id."""

    name: str
    legs: Sequence[Path]
    decisions: Sequence[Decisions] = ()
    cut: frozenset[int] = frozenset()  # legs (from 1) whose connection broke: abort, not end

    def decided(self, leg: int) -> Decisions:
        """Return the decisions before this leg."""
        return self.decisions[leg - 2] if 2 <= leg < len(self.decisions) + 2 else {}


def replay(
    make: Callable[[], Decoder],
    scenario: Scenario,
    *,
    chunk_bytes: int = 1 << 16,
    restart: bool = False,
) -> list[str]:
    """Return the golden lines of the scenario.

    With `restart`, each leg has a new decoder, which is restored from the JSON of the previous one.
    """
    decoder = make()
    lines: list[str] = []
    for leg, path in enumerate(scenario.legs, 1):
        if leg > 1:
            decided = dict(scenario.decided(leg))
            lines.append(_line({"leg": leg, "decided": decided}))
            if restart:
                state = json.loads(json.dumps(decoder.snapshot()))
                decoder = make()
                decoder.restore(state)
        drafts = [*decoder.open(leg)]
        if leg > 1:
            drafts += decoder.decided(decided)
        drafts += stream(decoder, path.read_bytes(), chunk_bytes)
        drafts += decoder.abort() if leg in scenario.cut else decoder.end()
        lines += [render(draft) for draft in drafts]
    return lines


def stream(decoder: Decoder, body: bytes, chunk_bytes: int = 1 << 16) -> list[Draft | Pause]:
    """Feed a body of `text/event-stream` to the decoder in chunks of this size."""
    parser = Parser()
    return [
        draft
        for start in range(0, len(body), chunk_bytes)
        for frame in parser.feed(body[start : start + chunk_bytes])
        for draft in decoder.feed(frame)
    ]


def render(draft: Draft | Pause) -> str:
    """Return one golden line, without the fields that are None or empty."""
    if isinstance(draft, Pause):
        items = [_present(asdict(item)) for item in draft.items]
        return _line({"pause": _present(asdict(draft)) | {"items": items}})
    return _line(_present(asdict(draft)) | {"data": draft.data})


def check(path: Path, lines: Sequence[str]) -> None:
    """Fail with the first difference; with `UPDATE_GOLDENS=1`, write the file instead."""
    if os.environ.get("UPDATE_GOLDENS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return
    # splitlines() would also split at U+2028, which may be inside a string.
    expected = path.read_text("utf-8").removesuffix("\n").split("\n")
    for number, (want, got) in enumerate(zip(expected, lines, strict=False), 1):
        assert got == want, f"{path.name}, line {number}"
    assert len(lines) == len(expected), f"{path.name}: the number of drafts"


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {}, [], ())}


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
