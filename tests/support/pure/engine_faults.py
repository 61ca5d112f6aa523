"""A world in which inputs come in any order and repeatedly, and in which replicas end at any time.

The model of a replica is that of the service: it appends the records of a decision in one step,
writes the frames that are missing, carries out the effects, and acknowledges the input last. A
replica that ends before the acknowledgement leaves the input to another one, which also carries out
the effects of everything that is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import orjson

from penstock_workflows.engine.decide import Decision
from penstock_workflows.engine.effects import Frame
from penstock_workflows.engine.inputs import Input
from penstock_workflows.engine.records import decode, encode
from penstock_workflows.engine.state import State
from support.pure.engine_world import World, check_state

Fate: TypeAlias = Literal[
    "well",
    "ends before the append",
    "ends after the append",
    "ends among the effects",
    "comes again",
    "meets another replica",
]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)


@dataclass
class FaultyWorld(World):
    """A run whose inputs meet with faults. `choose` returns a number below its argument."""

    choose: Callable[[int], int] = lambda below: 0
    faults: int = 12  # how many inputs meet with a fate other than "well"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.again: list[Input] = []  # inputs that were delivered before
        self.unwritten: list[Frame] = []
        self.before: State | None = None  # what a slow replica believes

    def run(self) -> State:
        """Handle inputs in any order until nothing is left to do."""
        while self.inputs or self.again or self.timers:
            if (not self.inputs and not self.again) or self.choose(4) == 0:
                rang = self.ring()
                if not (rang or self.inputs or self.again):
                    break
            self._one()
        assert self.state is not None
        return self.state

    def _one(self) -> None:
        waiting = len(self.inputs) + len(self.again)
        if not waiting:
            return
        at = self.choose(waiting)
        is_repeat = at >= len(self.inputs)
        input = (self.again if is_repeat else self.inputs).pop(at - is_repeat * len(self.inputs))
        fate: Fate = "well"
        if self.faults > 0:
            fate = FATES[self.choose(len(FATES))]
            self.faults -= fate != "well"
        if fate == "ends before the append":
            self.again.append(input)
            return
        has_met = fate == "meets another replica"
        if has_met:
            # A replica with an old state decides, and the fence refuses its records.
            self.decide(input, self.before)
        decision = self.decide(input, self.state)
        self.before = self.state
        self._store(decision)
        if fate == "ends after the append":
            self.again.append(input)
            return
        self._write()
        effects = list(decision.effects)
        if fate == "ends among the effects":
            for effect in effects[: self.choose(len(effects) + 1)]:
                self.carry_out(effect)
            self.again.append(input)
            return
        for effect in effects:
            self.carry_out(effect)
        if is_repeat or has_met:
            self.redo()
        if fate == "comes again":
            self.again.append(input)

    def _store(self, decision: Decision) -> None:
        for stored in decision.stored:
            self.values[stored.digest] = orjson.loads(stored.payload)
        if decision.records:
            self.journal += decode(encode(decision.records))
            check_state(decision.state)
            self.state = decision.state
            self.unwritten += decision.frames

    def _write(self) -> None:
        frames, self.unwritten = self.unwritten, []
        self.frames += frames
        for frame in frames:
            self.publish(frame)
