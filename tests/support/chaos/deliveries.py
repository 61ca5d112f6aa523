"""The rules of a round, the receiver of their webhooks, and the checks of what was delivered.

Each event and rule must have one outcome on the run's timeline. The outcomes and requests of the
rule `ordered` must follow the order of the run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from support.chaos.evidence import Late
from support.fakes.hostile import Hostile
from support.fakes.receiver import SECRET, Receiver, receiver

SERVICE: Final = "automations"
ORDERED: Final = "ordered"
# The events that each rule waits for.
RULES: Final[dict[str, frozenset[str]]] = {
    "all": frozenset({"lifecycle.started", "lifecycle.completed", "llm.tool_call"}),
    ORDERED: frozenset(
        {
            "lifecycle.started",
            "lifecycle.completed",
            "lifecycle.failed",
            "llm.message_started",
            "llm.message_completed",
            "llm.tool_call",
            "llm.tool_result",
        }
    ),
}
FAILS: Final = 0.15
OUTCOMES: Final = frozenset({"automation.completed", "automation.failed"})
SETTINGS: Final = {
    "webhook_allow_hosts": "127.0.0.1",
    "retry_delays_s": "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
    "deliver_ack_wait_s": 4,
}


@asynccontextmanager
async def hooks(folder: Path, seed: int) -> AsyncIterator[tuple[Receiver, dict[str, object]]]:
    """Run a receiver, and write a file of rules; yield the receiver and the service's settings."""
    async with receiver() as made:
        hostile = Hostile(seed, FAILS)
        rules: list[dict[str, Any]] = []
        for id, types in RULES.items():
            made.usual[f"/{id}"] = hostile.behave
            webhook = {"url": made.url(f"/{id}"), "secrets": [SECRET], "concurrency": 16}
            rule = {"id": id, "subjects": sorted(types), "action": {"webhook": webhook}}
            webhook["timeout_s"] = 1
            rules.append({**rule, "order": "run" if id == ORDERED else "none"})
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "rules.yaml"
        file.write_text(yaml.safe_dump({"rules": rules}))
        yield made, {"rules": file, **SETTINGS}


def requests_of(made: Receiver) -> dict[str, list[str]]:
    """Return the ids of all requests by run, in the order in which they came."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in made.requests:
        found[each.headers["penstock-run-id"]].append(each.id)
    return found


def expected(run_id: str, events: Sequence[dict[str, Any]]) -> set[str]:
    """Return the deliveries that the events of a run must have."""
    return {
        f"{rule}.{run_id}.{event['sequence']}"
        for event in events
        for rule, types in RULES.items()
        if _type_of(event) in types
    }


def outcomes(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the deliveries for which the run has an outcome event, in order."""
    return [event["data"]["delivery_id"] for event in events if _type_of(event) in OUTCOMES]


def check(run_id: str, events: Sequence[dict[str, Any]], requests: Sequence[str]) -> Iterator[str]:
    """Yield the problems of a run's deliveries."""
    wanted, said = expected(run_id, events), Counter(outcomes(events))
    if twice := [id for id, times in said.items() if times > 1]:
        yield f"these have more than one outcome: {twice}"
    if strange := said.keys() - wanted:
        yield f"these have an outcome, and no event: {strange}"
    if failed := [event["data"] for event in events if _type_of(event) == "automation.failed"]:
        yield f"these have failed for good: {failed}"
    if missing := wanted - said.keys():
        yield Late(f"these have no outcome: {sorted(missing)}")
    if unsent := said.keys() - set(requests):
        yield f"these were never sent: {unsent}"
    for what, ids in (("outcomes", outcomes(events)), ("requests", requests)):
        numbers = [int(id.rpartition(".")[2]) for id in ids if id.startswith(f"{ORDERED}.")]
        if any(earlier > later for earlier, later in pairwise(numbers)):
            yield f"the {what} of the ordered rule are {numbers}"


def _type_of(event: dict[str, Any]) -> str:
    return f"{event['event']['category']}.{event['event']['action']}"
