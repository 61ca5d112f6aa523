"""The checks of deliveries find each kind of defect, and nothing in a correct run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.chaos.deliveries import check, expected
from support.chaos.evidence import Late

RUN = "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e"
TYPES = ("lifecycle.started", "llm.tool_call", "llm.stream", "llm.tool_call", "lifecycle.completed")
Said = list[tuple[str, str]]


def made(said: Said) -> list[dict[str, Any]]:
    """Return the run's events, and then the events about deliveries: action and delivery."""
    names = [name.split(".") for name in TYPES]
    events: list[dict[str, Any]] = [
        {"sequence": n, "event": {"category": category, "action": action}, "data": {}}
        for n, (category, action) in enumerate(names, 1)
    ]
    return [
        *events,
        *(
            {
                "sequence": n,
                "event": {"category": "automation", "action": action},
                "data": {"delivery_id": id},
            }
            for n, (action, id) in enumerate(said, len(events) + 1)
        ),
    ]


IDS = [f"{rule}.{RUN}.{n}" for rule in ("all", "ordered") for n in (1, 2, 4, 5)]
GOOD: Said = [("completed", id) for id in IDS]


def test_a_correct_run_has_no_defect_and_may_have_sent_a_delivery_twice() -> None:
    assert expected(RUN, made([])) == set(IDS)
    triggered = [("triggered", id) for id in IDS]
    assert list(check(RUN, made([*triggered, *GOOD]), [*IDS[:6], *IDS[5:]])) == []


DEFECTS: dict[str, Callable[[Said, list[str]], None]] = {
    "more than one outcome": lambda said, sent: said.append(said[0]),
    "and no event": lambda said, sent: said.append(("completed", f"all.{RUN}.3")),
    "failed for good": lambda said, sent: said.__setitem__(0, ("failed", said[0][1])),
    "have no outcome": lambda said, sent: said.__delitem__(2),
    "never sent": lambda said, sent: sent.__delitem__(3),
    "the outcomes of the ordered rule": lambda said, sent: said.reverse(),
    "the requests of the ordered rule": lambda said, sent: sent.append(IDS[5]),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect: str) -> None:
    said, sent = list(GOOD), list(IDS)
    DEFECTS[defect](said, sent)
    [text] = [text for text in check(RUN, made(said), sent) if defect in text]
    assert isinstance(text, Late) == (defect == "have no outcome")
