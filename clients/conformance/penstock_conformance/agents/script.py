"""What the scripted agents do, alike on all servers. Only the standard library is used here.

The first word of a message chooses what the agent does: `SCRIPTS` has the words. They are the
options of penstock-conformance, which passes them all with `--scripted`. With any other word the
agent says a few words.

`chaos RUN CALLS` names the run and says how often the agent calls the tool `effect`. Before each
call, and at the end, the agent says numbered words: `#0 #1 #2 …`. So a client can tell which words
it has not received, or received twice. `penstock-conformance chaos` sets PENSTOCK_CHAOS_COUNTER,
the URL of the counter that counts the effects.
"""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

WORDS: Final = 4  # in each turn of a run of `chaos`
PAUSE_S: Final = 0.05  # before each of them
RAN: Final = "the-guarded-tool-has-run"  # only the result of that tool has these letters

_TICKS, _TICK_S = 150, 0.1
_PIECES, _PIECE = 100, "x" * 40_000  # more than the buffers of a connection hold

# What a model does next: `say` or `think` a text, `call` a tool (its name and its arguments),
# `wait` so many seconds, or `fail` with a text.
Step = tuple[str, Any]


async def play(message: str, results: Sequence[str]) -> AsyncIterator[Step]:
    """Yield what the model says, thinks and calls in one turn. `results` are those of the tools
    that the agent has called since the message."""
    for kind, value in turn(message, results):
        if kind == "wait":
            await asyncio.sleep(value)
        elif kind == "fail":
            raise RuntimeError(value)
        else:
            yield kind, value


def turn(message: str, results: Sequence[str]) -> Iterator[Step]:
    """Yield the steps of one turn of the model."""
    word, _, rest = message.strip().partition(" ")
    yield from SCRIPTS.get(word, _text)(rest, results)


def _text(rest: str, results: Sequence[str]) -> Iterator[Step]:
    for word in ("Hello", " from", " the", " scripted", " agent."):
        yield "say", word


def _calls(rest: str, results: Sequence[str]) -> Iterator[Step]:
    if results:
        yield "say", f"Found: {results[-1]}."
    else:
        yield "say", "I will look. "
        yield "call", ("lookup", {"name": "Rome"})


def _asks(rest: str, results: Sequence[str]) -> Iterator[Step]:
    if results:
        yield "say", f"Done: {results[-1]}."
    else:
        yield "call", ("guarded", {"name": "Rome"})


def _fails(rest: str, results: Sequence[str]) -> Iterator[Step]:
    yield "say", "I begin, "
    yield "say", "and then "
    yield "fail", "the scripted agent fails on purpose"


def _slow(rest: str, results: Sequence[str]) -> Iterator[Step]:
    for number in range(_TICKS):
        yield "say", f"#{number} "
        yield "wait", _TICK_S


def _long(rest: str, results: Sequence[str]) -> Iterator[Step]:
    for number in range(_PIECES):
        yield "say", f"#{number} {_PIECE} "
        yield "wait", 0


def _thinks(rest: str, results: Sequence[str]) -> Iterator[Step]:
    yield "think", "Let me think"
    yield "think", " about it."
    yield "say", "The answer"
    yield "say", " is 42."


def _echo(rest: str, results: Sequence[str]) -> Iterator[Step]:
    yield "say", rest or "nothing"


def _chaos(rest: str, results: Sequence[str]) -> Iterator[Step]:
    run, calls = rest.split()
    made = len(results)
    for number in range(made * WORDS, (made + 1) * WORDS):
        yield "wait", PAUSE_S
        yield "say", f"#{number} "
    if made < int(calls):
        yield "call", ("effect", {"run": run, "call": made})


SCRIPTS: Final[Mapping[str, Callable[[str, Sequence[str]], Iterator[Step]]]] = {
    "text": _text,
    "calls": _calls,
    "asks": _asks,
    "fails": _fails,
    "thinks": _thinks,
    "slow": _slow,
    "long": _long,
    "echo": _echo,
    "chaos": _chaos,
}


def lookup(name: str) -> str:
    """Look something up. Needs no approval."""
    return f"{name} is in the list"


def guarded(name: str) -> str:
    """Do something for which the agent asks first."""
    return f"{RAN} for {name}"


def effect(run: str, call: int) -> str:
    """Have the side effect that is counted."""
    counter = os.environ["PENSTOCK_CHAOS_COUNTER"]
    request = urllib.request.Request(f"{counter}/effects/{run}/{call}", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
    return f"effect {call} has happened"
