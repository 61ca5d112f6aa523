"""Each log line that concerns a run has the run's id as a field.

A line has it by `run %s` in its format, by `extra=run_of(…)`, or because its code works on one
message of a work queue, one leg or one delivery, whose run is bound (see `penstock.log_fields`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parent.parent
LEVELS: Final = {"debug", "info", "warning", "error", "exception", "critical", "log"}
EVERY: Final = ("",)

# Code that is called only while a message, a leg or a delivery is bound, or `about` a run holds.
BOUND: Final[Mapping[str, tuple[str, ...]]] = {
    "penstock/bus/read/work_queue.py": EVERY,
    "penstock_automations/delivery/one_delivery.py": EVERY,
    "penstock_connector/commands/session_order.py": EVERY,
    "penstock_connector/upstreams/conversations.py": EVERY,
    "penstock_workflows/effects/listens.py": ("%s: the event is gone",),
    "penstock_workflows/inputs/message_handler.py": EVERY,
}

# Lines by the begin of their format that concern no run, several runs, or a run that is unknown.
NO_RUN: Final[Mapping[str, tuple[str, ...]]] = {
    # Streams, shards, the connection and the clock; and messages that are gone.
    "penstock/bus/admin": EVERY,
    "penstock/bus/bus.py": EVERY,
    "penstock/bus/connection": EVERY,
    "penstock/bus/state": EVERY,
    "penstock/bus/read/pull.py": ("%s: %s",),  # the loop of a whole consumer
    "penstock/bus/read/follow.py": ("%s: no message is left between",),
    # The process, its probes and its credentials.
    "penstock/service/connecting.py": EVERY,
    "penstock/service/measuring.py": EVERY,
    "penstock/service/process.py": EVERY,
    "penstock/service/service.py": (
        *("%s is ready as", "%s: %s failed, it is restarted", "%s: %s: tried again later", "%s"),
    ),
    "penstock/service/stopping.py": EVERY,
    "penstock/service/token_index.py": EVERY,
    "penstock/tracing": EVERY,
    "penstock/web/auth": EVERY,
    "penstock/web/bodies.py": EVERY,
    "penstock/web/credential_routes.py": EVERY,
    "penstock/web/server.py": EVERY,
    # What subscribers install; the format has "run" and the id as text.
    "penstock/subscribe": EVERY,
    "penstock_approvals/audit/anchors.py": EVERY,
    "penstock_approvals/budgets/listing.py": EVERY,  # an account
    "penstock_approvals/inbox/feed.py": ("the changes of approvals",),
    "penstock_approvals/api/changes.py": EVERY,
    "penstock/documents/store.py": EVERY,
    "penstock_approvals/lifecycle/restore.py": ("%s: the approval cannot be restored",),
    "penstock_approvals/api/requests.py": ("%s",),  # a record that cannot be read
    "penstock_approvals/service.py": ("a request or a decision failed",),
    "penstock_automations/actions/webhook/mirror.py": EVERY,
    "penstock_automations/delivery/failing.py": EVERY,  # a rule
    "penstock_automations/delivery/waking.py": EVERY,  # a rule
    "penstock_automations/matching/backlog.py": EVERY,  # events of several runs
    "penstock_automations/matching/evaluations.py": EVERY,  # a lane's run is bound; hooks have none
    "penstock_automations/rules": EVERY,
    "penstock_automations/service.py": EVERY,
    "penstock_automations/api/hooks.py": EVERY,  # a request that has not started a run yet
    "penstock_automations/api/rules.py": EVERY,  # a rule
    "penstock_automations/triggers": EVERY,  # the same
    "penstock_cli/local": EVERY,
    "penstock_cli/demo/connector.py": EVERY,
    "penstock_connector/service.py": EVERY,
    "penstock_edge/service.py": EVERY,
    "penstock_edge/sources/session_list.py": EVERY,
    "penstock_edge/stream/open_streams.py": EVERY,
    "penstock_edge/stream/saved_cursors.py": EVERY,  # cursors of many runs
    "penstock_edge/surfaces/session_start.py": EVERY,  # a session
    "penstock_edge/surfaces/adk/app_list.py": EVERY,
    "penstock_edge/surfaces/adk/servers.py": EVERY,
    "penstock_edge/surfaces/v1/events.py": EVERY,
    "penstock_normalizer/erasing/early.py": ("runs are erased after their time later",),
    "penstock_normalizer/partitions": EVERY,
    "penstock_normalizer/prices": EVERY,  # the table of prices
    "penstock_normalizer/recovery/abandoned_runs.py": ("%s, partition %d: the frames",),
    "penstock_normalizer/service.py": EVERY,
    "penstock_workflows/registry.py": EVERY,
}


def log_calls(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the format and the source of each call of a module's logger."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("log"), attr=level)) if level in LEVELS:
                at = 1 if level == "log" else 0
                source = ast.unparse(node)
                given: ast.expr = node.args[at if len(node.args) > at else 0]
                if isinstance(given, ast.Starred) and isinstance(given.value, ast.Tuple):
                    given = given.value.elts[at]
                text = given.value if isinstance(given, ast.Constant) else _assigned(tree, given)
                yield node.lineno, str(text), source


def _assigned(tree: ast.AST, name: ast.expr) -> str:
    """Return all texts that are assigned to a variable of the module, joined."""
    assert isinstance(name, ast.Name), f"{ast.unparse(name)}: write the format into the call"
    found = [
        str(node.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and name.id in map(ast.unparse, node.targets)
    ]
    return next((text for text in found if "%" in text), "")


def names_a_run(text: str, source: str) -> bool:
    by_approval = text.startswith("approval %s")  # `log_fields.approval_of` knows the run
    return "run %s" in text or "extra=" in source or by_approval


def listed(table: Mapping[str, tuple[str, ...]], module: str, text: str) -> bool:
    return any(
        text.startswith(begin) if begin != "%s" else text == begin
        for path, begins in table.items()
        if module == path or module.startswith(f"{path}/")
        for begin in begins
    )


MODULES = [
    *sorted((ROOT / "shared/penstock").rglob("*.py")),
    *sorted((ROOT / "services").glob("*/penstock_*/**/*.py")),
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[1:] if parts[0] == "shared" else parts[2:])


@cache
def all_lines() -> list[tuple[str, int, str, str]]:
    """Return the module, the line, the format and the source of each call."""
    return [
        (module_name(path), *found)
        for path in MODULES
        if b"log." in (code := path.read_bytes())
        for found in log_calls(ast.parse(code))
    ]


def test_each_log_line_names_its_run_or_is_listed() -> None:
    missing = [
        f"{module}:{line}: {text}"
        for module, line, text, source in all_lines()
        if not names_a_run(text, source)
        and not listed(BOUND, module, text)
        and not listed(NO_RUN, module, text)
    ]
    assert not missing, "\n".join(["write `run %s` or extra=run_of(…), or list:", *missing])
    assert len(all_lines()) > 250


@pytest.mark.parametrize("table", [BOUND, NO_RUN])
def test_each_listed_line_exists(table: Mapping[str, tuple[str, ...]]) -> None:
    for place, begins in table.items():
        for begin in begins:
            assert any(
                listed({place: (begin,)}, module, text) for module, _, text, _ in all_lines()
            ), f"{place}: no line begins with {begin!r}"


def test_a_line_without_a_run_is_found() -> None:
    source = 'log.warning("reading %s: %s", key, error)'
    ((_, text, call),) = log_calls(ast.parse(source))
    assert not names_a_run(text, call)
    assert not listed(NO_RUN, "penstock_edge/stream/replay.py", text)
