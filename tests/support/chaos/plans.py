"""What the clients ask for: the runs of a round, made of its seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Agent = Literal["agno", "adk"]
Decision = Literal["approve", "reject", "none"]  # "none": it is left waiting

# The first words select the scripted model's answer: see TRIGGERS.md and SCENARIOS.md in
# tests/upstreams.
_PLAIN: dict[Agent, tuple[str, ...]] = {
    "agno": ("text", "tool", "texttool", "tools", *["long"] * 5),
    "adk": ("plain hi", "weather", "burst 40", "parallel", "slow 50 60", *["slow 50 100"] * 3),
}
_ASKING: dict[Agent, tuple[str, ...]] = {
    "agno": ("confirm", "textconfirm", "slowconfirm"),
    "adk": ("confirm",),
}
_ENDLESS: dict[Agent, str] = {"agno": "slow", "adk": "slow 300 60"}
_DECISIONS: dict[Decision, int] = {"approve": 5, "reject": 3, "none": 1}

# of a hundred runs
ASKING, CANCELLED, SHARED, DUELS, TWICE = 0.33, 0.1, 0.25, 0.4, 0.15
SHARED_SESSIONS = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `mark` is in its message, and in nothing of any other run."""

    nonce: str
    number: int
    agent: Agent
    script: str
    session_id: str
    followers: int = 1
    started_twice: bool = False  # with the same key, on another edge
    decision: Decision | None = None
    duel: bool = False  # decided twice at once, one way and the other, by two processes
    cancel_after: int | None = None  # events that its client has seen

    @property
    def mark(self) -> str:
        return f"r{self.number:04d}-{self.nonce}"

    @property
    def message(self) -> str:
        return f"{self.script} {self.mark}"


def plans(seed: int, nonce: str) -> Iterator[Plan]:
    """Runs without end. `nonce`: digits that tell this round's runs from another's."""
    chance = random.Random(f"plans {seed}")
    number = 0
    while True:
        yield _plan(chance, nonce, number)
        number += 1


def _plan(chance: random.Random, nonce: str, number: int) -> Plan:
    agent: Agent = chance.choice(("agno", "agno", "adk"))
    followers, twice = chance.choice((1, 1, 2)), chance.random() < TWICE
    own = f"s-{nonce}-{number}"  # a session of its own
    kind = chance.random()
    if kind < ASKING:
        # the tools of ADK name their session and nothing else: so it is not shared
        (decision,) = chance.choices(list(_DECISIONS), list(_DECISIONS.values()))
        duel = decision != "none" and chance.random() < DUELS
        script = chance.choice(_ASKING[agent])
        return Plan(nonce, number, agent, script, own, followers, twice, decision, duel)
    if kind < ASKING + CANCELLED:
        after = chance.choice((0, 1, 3, 8, 20))
        return Plan(
            nonce, number, agent, _ENDLESS[agent], own, followers, twice, cancel_after=after
        )
    shared = f"shared-{nonce}-{agent}-{chance.randrange(SHARED_SESSIONS)}"
    session_id = shared if chance.random() < SHARED else own
    return Plan(nonce, number, agent, chance.choice(_PLAIN[agent]), session_id, followers, twice)
