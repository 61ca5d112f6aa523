"""The requests of the clients: the runs of a round, made from its seed, without I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

# `resumable` is an app of the ADK server that can continue a run after a lost connection. `agui` is
# pydantic-ai's adapter, which has an address for each script.
Agent = Literal["agno", "adk", "resumable", "agui"]
Decision = Literal["approve", "reject", "none"]  # "none": nobody decides

# The first words select the scripted model's answer: see TRIGGERS.md and SCENARIOS.md in
# tests/upstreams.
_PLAIN: dict[Agent, tuple[str, ...]] = {
    "agno": ("text", "tool", "texttool", "tools", *["long"] * 5),
    "adk": ("plain hi", "weather", "burst 40", "parallel", "slow 50 60", *["slow 50 100"] * 3),
    "resumable": ("weather", "burst 40", *["slow 50 100"] * 3),
    "agui": ("text", "tool", "parallel", *["slow"] * 2),
}
_ASKING: dict[Agent, tuple[str, ...]] = {
    "agno": ("confirm", "textconfirm", "slowconfirm"),
    "adk": ("confirm",),
    "resumable": ("confirm",),
    "agui": ("approval",),
}
_ENDLESS: dict[Agent, str] = {
    "agno": "slow",
    "adk": "slow 300 60",
    "resumable": "slow 300 60",
    "agui": "slow",
}
# The scripts of runs that may share a session with other runs. The other scripts need a session of
# their own for one of three reasons. ADK's record of a tool names only the session, so a run with
# an approval needs its own. A resumed run of a resumable app is recognized by its session. The
# AG-UI scripts depend on the whole conversation.
_SHARED: dict[Agent, tuple[str, ...]] = {
    "agno": (*_PLAIN["agno"], *_ASKING["agno"]),
    "adk": _PLAIN["adk"],
    "resumable": (),
    "agui": ("text", "slow"),
}
_DECISIONS: dict[Decision, int] = {"approve": 5, "reject": 3, "none": 1}

# The share of the runs with each property, among those that can have it: a decision, a cancel, a
# shared session, two decisions at once, a second start, and reconnects.
ASKING, CANCELLED, SHARED, DUELS, TWICE, LEAVES = 0.33, 0.1, 0.4, 0.4, 0.15, 0.2
SHARED_SESSIONS = 3  # of each agent; few enough that some runs have to wait in line


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `mark` is a text in the run's message that no other run contains."""

    nonce: str
    number: int
    agent: Agent
    script: str
    session_id: str
    followers: int = 1
    started_twice: bool = False  # started again with the same key, on another edge
    decision: Decision | None = None
    duel: bool = False  # two processes send opposite decisions at once
    cancel_after: int | None = None  # events that the client sees before it cancels
    leave_after: int | None = None  # events before it reconnects to another edge

    @property
    def mark(self) -> str:
        return f"r{self.number:04d}-{self.nonce}"

    @property
    def agent_id(self) -> str:
        """The agent's id in the configuration."""
        return f"{self.agent}-{self.script}" if self.agent == "agui" else self.agent

    @property
    def message(self) -> str:
        return f"{self.script} {self.mark}"


def agui_scripts() -> list[str]:
    """Return all scripts that the round requests from the AG-UI server."""
    return sorted({*_PLAIN["agui"], *_ASKING["agui"], _ENDLESS["agui"]})


def plans(
    seed: int,
    nonce: str,
    agents: Sequence[Agent] = ("agno", "agno", "adk"),
    asking: float = ASKING,
) -> Iterator[Plan]:
    """Yield runs without end. `nonce` has digits that no other round has.

    `agents`: the agents to use; a repeated agent gets more of the runs. `asking`: the share of the
    runs that wait for a decision.
    """
    chance = random.Random(f"plans {seed}")
    number = 0
    while True:
        yield _plan(chance, nonce, number, chance.choice(agents), asking)
        number += 1


def _plan(chance: random.Random, nonce: str, number: int, agent: Agent, asking: float) -> Plan:
    asks = chance.random()
    decision: Decision | None = None
    cancel_after = None
    if asks < asking:
        script = chance.choice(_ASKING[agent])
        (decision,) = chance.choices(list(_DECISIONS), list(_DECISIONS.values()))
    elif asks < asking + CANCELLED:
        script = _ENDLESS[agent]
        cancel_after = chance.choice((0, 1, 3, 8, 20))
    else:
        script = chance.choice(_PLAIN[agent])
    shared = f"shared-{nonce}-{agent}-{chance.randrange(SHARED_SESSIONS)}"
    may_share = cancel_after is None and script in _SHARED[agent]
    return Plan(
        nonce,
        number,
        agent,
        script,
        shared if may_share and chance.random() < SHARED else f"s-{nonce}-{number}",
        followers=chance.choice((1, 1, 2)),
        started_twice=chance.random() < TWICE,
        decision=decision,
        duel=decision not in (None, "none") and chance.random() < DUELS,
        cancel_after=cancel_after,
        leave_after=chance.choice((1, 5, 20)) if chance.random() < LEAVES else None,
    )
