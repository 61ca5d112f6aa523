"""The faults of a round and their times, made from a seed, so that a round can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Literal

Kind = Literal["kill", "pause", "cut", "hang", "older"]

# the shares of the targets, of sixteen kills
_KILLED = {"connector": 4, "normalizer": 4, "approvals": 3, "edge": 3, "broker": 2}
_FURTHER = {"automations": 4, "workflows": 4}  # further services, where the round has them
# the other faults for each dozen kills: (kind, target)
_BESIDES: tuple[tuple[Kind, str], ...] = (
    ("cut", "upstream"),
    ("hang", "connector"),
    ("cut", "normalizer"),
    ("pause", "normalizer"),
    ("cut", "upstream"),
    ("pause", "broker"),
    ("cut", "edge"),
    ("pause", "connector"),
    ("hang", "normalizer"),
    ("cut", "connector"),
    ("hang", "approvals"),
)
_BESIDES_PER_KILL = 5 / 12
# A target gets no further fault for this long after its return. Streams of a restarted broker elect
# new leaders, which takes seconds. With a fault right after that, a cluster would never have
# leaders.
_SETTLE_S = {"broker": 12.0}
SETTLE_S = 5.0
# Faults that hit many processes at once. No other fault happens during such a fault and for some
# seconds before and after it.
EVERYTHING, MAJORITY = "everything", "majority"
_ALONE: dict[str, tuple[float, float]] = {EVERYTHING: (1.0, 5.0), MAJORITY: (6.0, 20.0)}
_BEFORE_ALONE_S = 8.0
_AFTER_ALONE_S = 12.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. After `for_s` it is repaired: the process is started, continued or connected."""

    at_s: float
    kind: Kind
    target: str  # a service, `broker`, `upstream`, `everything` or `majority` (of brokers)
    number: int  # the target's number
    for_s: float

    def __str__(self) -> str:
        name = f"{self.target} {self.number}"
        if self.target == "upstream":
            what = f"cut every answer of {name}"
        elif self.target == EVERYTHING:
            what = f"kill -9 every process, started again after {self.for_s:.1f} s"
        elif self.target == MAJORITY:
            what = f"kill -9 all brokers but {self.number}, started again after {self.for_s:.1f} s"
        else:
            what = _WORDS[self.kind].format(name, self.for_s)
        return f"{self.at_s:6.1f} s  {what}"


_WORDS: dict[Kind, str] = {
    "kill": "kill -9 {0}, started again after {1:.1f} s",
    "pause": "SIGSTOP {0}, SIGCONT after {1:.1f} s",
    "cut": "cut the connections of {0}, refused for {1:.1f} s",
    "hang": "let the connections of {0} hang for {1:.1f} s",
    "older": "{0} comes back with what some stream had {1:.1f} s before",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of processes of each kind, and the lengths of pauses."""

    count: dict[str, int]  # connector, normalizer, approvals, edge, broker, upstream
    every_s: float = 3.0  # from one kill to the next
    pause_s: dict[str, float] = field(
        # The pauses exceed the leases: 15 s of a connector, 6 s of a normalizer. After its pause, a
        # broker has outdated replicas of both leases.
        default_factory=lambda: {"connector": 17.0, "normalizer": 8.0, "broker": 16.0}
    )
    alone: tuple[str, ...] = ()  # `everything` or `majority`, each once, spread over the round


def schedule(seed: int, kills: int, shape: Shape) -> list[Fault]:
    """Return the faults in the order of their times.

    If `kills` is high enough, every target is killed before any target is killed twice as often.
    Faults of brokers do not overlap and leave time to catch up. A target that is still away gets no
    fault.
    """
    chance = random.Random(f"faults {seed}")
    free_at: dict[tuple[str, int], float] = {}
    faults: list[Fault] = []
    at_s = 0.0
    for kind, target in _mixed(chance, kills, shape):
        if kind == "kill":
            at_s += shape.every_s * chance.uniform(0.7, 1.3)
        number, start_s = _least_busy(chance, free_at, target, shape.count[target], at_s)
        fault = Fault(round(start_s, 1), kind, target, number, _away_s(chance, kind, target, shape))
        faults.append(fault)
        back_s = start_s + fault.for_s + _SETTLE_S.get(target, SETTLE_S)
        # A cluster of three works while one broker is away, and not while two are away.
        hurt = range(shape.count[target]) if target == "broker" else [number]
        free_at.update({(target, each): back_s for each in hurt})
    faults = sorted(faults, key=lambda fault: (fault.at_s, fault.target, fault.number))
    return _with_those_alone(chance, faults, shape)


def _with_those_alone(chance: random.Random, faults: Sequence[Fault], shape: Shape) -> list[Fault]:
    """Insert the faults that hit many processes, and delay all later faults accordingly."""
    found: list[Fault] = []
    places = {
        len(faults) * (number + 1) // (len(shape.alone) + 1): target
        for number, target in enumerate(shape.alone)
    }
    later_s = 0.0
    for place, fault in enumerate(faults):
        if place in places:
            target = places[place]
            at_s = max((each.at_s + each.for_s for each in found), default=0.0) + _BEFORE_ALONE_S
            number = chance.randrange(shape.count["broker"])
            for_s = round(chance.uniform(*_ALONE[target]), 1)
            found.append(Fault(round(at_s, 1), "kill", target, number, for_s))
            later_s = at_s + for_s + _AFTER_ALONE_S - fault.at_s
        found.append(replace(fault, at_s=round(fault.at_s + later_s, 1)))
    return found


def shown(seed: int, faults: Sequence[Fault]) -> str:
    """Describe the schedule in words."""
    kills = sum(fault.kind == "kill" for fault in faults)
    head = (
        f"seed {seed}: {kills} kills and {len(faults) - kills} other faults; "
        f"the same again: make chaos SEED={seed}"
    )
    return "\n".join([head, *map(str, faults)])


def _mixed(chance: random.Random, kills: int, shape: Shape) -> Iterator[tuple[Kind, str]]:
    killed = _in_turns(chance, kills, _KILLED | _present(_FURTHER, shape))
    besides = list(islice(cycle(_BESIDES), round(kills * _BESIDES_PER_KILL)))
    besides = [(kind, what) for kind, what in besides if kind != "pause" or what in shape.pause_s]
    places = dict(zip(sorted(chance.sample(range(kills), len(besides))), besides, strict=True))
    for number, target in enumerate(killed):
        yield "kill", target
        if number in places:
            yield places[number]


def _present(shares: dict[str, int], shape: Shape) -> dict[str, int]:
    return {name: share for name, share in shares.items() if shape.count.get(name)}


def _in_turns(chance: random.Random, kills: int, shares: dict[str, int]) -> list[str]:
    """Return the targets of the kills in turns, so that the shares are spread evenly.

    A turn kills each target once and then the rest of its share. The last turn stops when `kills`
    is reached.
    """
    rest = [name for name, share in shares.items() for _ in range(share - 1)]
    order: list[str] = []
    while len(order) < kills:
        turn = [*_shuffled(chance, shares), *_shuffled(chance, rest)][: kills - len(order)]
        order += _shuffled(chance, turn)
    return order


def _shuffled(chance: random.Random, names: Iterable[str]) -> list[str]:
    shuffled = list(names)
    chance.shuffle(shuffled)
    return shuffled


def _least_busy(
    chance: random.Random,
    free_at: dict[tuple[str, int], float],
    target: str,
    count: int,
    at_s: float,
) -> tuple[int, float]:
    """Return the number of a target, and the earliest time for its fault.

    The number is a random one of those that are not away; if all are away, the first that returns.
    """
    ready = [number for number in range(count) if free_at.get((target, number), 0.0) <= at_s]
    if ready:
        return chance.choice(ready), at_s
    soonest = min(free_at[target, number] for number in range(count))
    first = [number for number in range(count) if free_at[target, number] == soonest]
    return chance.choice(first), soonest


def _away_s(chance: random.Random, kind: Kind, target: str, shape: Shape) -> float:
    if kind == "pause":
        return round(shape.pause_s[target] * chance.uniform(1.0, 1.2), 1)
    if target == "upstream":
        return 0.0
    at_most_s = {"kill": 3.0, "cut": 4.0, "hang": 6.0}[kind]
    return round(chance.uniform(0.1, at_most_s), 1)
