"""What the scripted agents do, alike on all servers. Only the standard library is used here.

The message `chaos RUN CALLS` names the run and says how often the agent calls the tool `effect`.
Before each call, and at the end, the agent says numbered words: `#0 #1 #2 …`. So a client can tell
which words it has not received, or received twice.

`chaos` sets PENSTOCK_CHAOS_COUNTER, the URL of the counter that counts the effects.
"""

from __future__ import annotations

import os
import urllib.request
from typing import Any

WORDS = 4  # in each turn of the model
PAUSE_S = 0.05  # before each word


def words(calls_made: int) -> list[str]:
    """Return the words of the turn that follows so many calls."""
    return [f"#{number} " for number in range(calls_made * WORDS, (calls_made + 1) * WORDS)]


def next_call(message: str, calls_made: int) -> dict[str, Any] | None:
    """Return the arguments of the next call of `effect`, or None if the run is over."""
    word, run, calls = message.split()
    if word != "chaos":
        raise ValueError("the message must be: chaos RUN CALLS")
    return {"run": run, "call": calls_made} if calls_made < int(calls) else None


def effect(run: str, call: int) -> str:
    """Have the side effect that is counted."""
    counter = os.environ["PENSTOCK_CHAOS_COUNTER"]
    request = urllib.request.Request(f"{counter}/effects/{run}/{call}", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
    return f"effect {call} has happened"
