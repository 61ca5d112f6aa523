"""Find every state that a model can reach, breadth first, so that each trace is a shortest one."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Move(Generic[S]):
    """One step of one participant. A fault may happen at any time, and may also never happen."""

    name: str  # name of a `Step`; lower case if the step writes nothing
    who: str
    to: S
    is_fault: bool = False


@dataclass(slots=True)
class Found(Generic[S]):
    """A violation, and the steps that lead to it."""

    what: str
    trace: list[str]

    def __str__(self) -> str:
        return f"{self.what}:\n" + "\n".join(f"  {line}" for line in self.trace)


class Explored(Generic[S]):
    """All states that can be reached from `start`."""

    def __init__(self, start: S, moves: Callable[[S], Iterable[Move[S]]], limit: int) -> None:
        self._came: dict[S, tuple[S, Move[S]] | None] = {start: None}
        self._before: dict[S, list[S]] = {}  # predecessors by steps that are no faults
        todo = deque([start])
        was_enabled = gc.isenabled()
        gc.disable()  # states have no reference cycles, so the collector would only cost time
        try:
            self._explore(todo, moves, limit)
        finally:
            if was_enabled:
                gc.enable()

    def _explore(self, todo: deque[S], moves: Callable[[S], Iterable[Move[S]]], limit: int) -> None:
        while todo:
            state = todo.popleft()
            for move in moves(state):
                if move.to == state:
                    continue
                if not move.is_fault:
                    self._before.setdefault(move.to, []).append(state)
                if move.to not in self._came:
                    self._came[move.to] = state, move
                    todo.append(move.to)
            if len(self._came) > limit:
                raise OverflowError(f"more than {limit} states")

    def __len__(self) -> int:
        return len(self._came)

    def first(self, what: str, is_wrong: Callable[[S], bool]) -> Found[S] | None:
        """Return the nearest state that is wrong; None if there is none."""
        for state in self._came:
            if is_wrong(state):
                return Found(what, self.trace(state))
        return None

    def stuck(self, what: str, is_done: Callable[[S], bool]) -> Found[S] | None:
        """Return the nearest state from which no steps without faults lead to a done state."""
        hopeful = {state for state in self._came if is_done(state)}
        todo = list(hopeful)
        while todo:
            for before in self._before.get(todo.pop(), ()):
                if before not in hopeful:
                    hopeful.add(before)
                    todo.append(before)
        return self.first(what, lambda state: state not in hopeful)

    def trace(self, state: S) -> list[str]:
        """Return the steps that lead to the state."""
        lines = []
        came = self._came[state]
        while came is not None:
            before, move = came
            lines.append(f"{move.who}: {move.name}")
            came = self._came[before]
        return lines[::-1]

    def names(self) -> set[str]:
        """Return the names of all steps on the shortest ways to all states."""
        return {came[1].name for came in self._came.values() if came is not None}


def admits(
    start: S,
    moves: Callable[[S], Iterable[Move[S]]],
    who: str,
    names: Sequence[str],
) -> int:
    """Return how many of these steps the model can do, if `who` does them in this order.

    Steps of other participants, and steps that write nothing, may happen in between.
    """
    now = _closure({start}, moves, who)
    for done, name in enumerate(names):
        after = {
            move.to
            for state in now
            for move in moves(state)
            if move.name == name and move.who.startswith(who)
        }
        if not after:
            return done
        now = _closure(after, moves, who)
    return len(names)


def _closure(states: set[S], moves: Callable[[S], Iterable[Move[S]]], who: str) -> set[S]:
    todo = list(states)
    while todo:
        for move in moves(todo.pop()):
            is_silent = not move.name.isupper() or not move.who.startswith(who)
            if is_silent and move.to not in states:
                states.add(move.to)
                todo.append(move.to)
    return states
