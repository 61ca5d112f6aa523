"""List, show and decide approvals, and ask the person at the terminal for decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from penstock_cli.terminal import render
from penstock_cli.terminal.output import Output

Record = Mapping[str, Any]
Item = dict[str, Any]

# The kinds of items whose approval needs a value. Items of other kinds need only yes or no.
_WANTS_VALUE = frozenset(
    {"input", "external", "feedback", "selection", "credential", "long_running"}
)
_WORDS = {"y": "approve", "yes": "approve", "n": "reject", "no": "reject"}


def show(output: Output, approval: Record) -> None:
    output.record(approval, hidden=("items", "command_published", "event_published"))
    if output.as_json:
        return
    for item in approval["items"]:
        output.pieces([("\n", ""), (f"{render.item(item)}\n", "bold")])
        output.pieces(render.fields(item))


def show_decision(output: Output, approval: Record, decided: Sequence[Item]) -> None:
    """Show what was decided, item by item. With `--json`, show the approval's record."""
    if output.as_json:
        output.json_line(approval)
        return
    decisions = {each["item_id"]: each["decision"] for each in decided}
    for item in approval["items"]:
        word = "approved" if decisions.get(item["item_id"]) == "approve" else "rejected"
        output.pieces([(f"{word}: ", "bold"), (f"{render.item(item)}\n", "")])
    if told := waits(approval):
        output.notice(f"{told}; the run goes on when others have approved, too")
    else:
        output.notice(f"run {approval['run_id']} of {approval['agent']} goes on")


def waits(approval: Record) -> str | None:
    """Return a text with the number of votes that a pending approval has and needs; None if the
    approval has ended."""
    return None if approval["status"] != "pending" else f"your vote counts: {_votes(approval)}"


def show_waiting(output: Output, approval: Record, what: str) -> None:
    """Say what the caller has done to an approval that still waits. With `--json`, show its
    record."""
    if output.as_json:
        output.json_line(approval)
    else:
        output.notice(f"{what}; {_votes(approval)} have approved")


def _votes(approval: Record) -> str:
    votes = sum(not vote.get("void") for vote in approval.get("votes") or [])
    return f"{votes} of {approval.get('need', 1)}"


def show_audit(output: Output, audit: Record) -> int:
    """Show the audit of an approval; return 1 if the chain of its run is not intact."""
    if output.as_json:
        output.json_line(audit)
    else:
        columns = ("n", "at", "event", "by", "channel", "decision", "hash")
        rows = [[each.get(name) or "" for name in columns] for each in audit["records"]]
        output.table(columns, rows)
        for finding in audit["findings"]:
            output.notice(f"penstock: {finding}")
    return 0 if audit["intact"] else 1


def decided(
    approval: Record,
    decision: str,
    values: Mapping[str, Any] | None = None,
    rejected: Sequence[str] = (),
) -> list[Item]:
    """Return a decision for every item.

    Items in `rejected` are rejected; all other items get `decision`.

    The keys of `values` are item ids. An id that the approval does not have is sent, too, so that
    the service refuses the request and names the id.
    """
    decisions = dict.fromkeys((item["item_id"] for item in approval["items"]), decision)
    decisions |= dict.fromkeys(values or {}, decision) | dict.fromkeys(rejected, "reject")
    return [
        {"item_id": item_id, "decision": decided}
        | ({"value": values[item_id]} if values and item_id in values else {})
        for item_id, decided in decisions.items()
    ]


def parse_value_of(text: str) -> tuple[str, Any]:
    """Return the item's id and the value in a text `ITEM=VALUE`. Raises ValueError for a text
    without `=`."""
    item_id, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not ITEM=VALUE: write the item's id, =, and the value")
    return item_id, parse_value(value)


def parse_value(text: str) -> Any:
    """Return the JSON value in the text; the text itself if it is no JSON."""
    try:
        return orjson.loads(text)  # not `json`, which reads NaN and 1e400, which cannot be sent
    except ValueError:
        return text


def parse_answer(text: str) -> tuple[str | None, str | None]:
    """Return the decision and the note of an answer such as `n too risky`. A missing or unknown
    part is None."""
    word, _, note = text.partition(" ")
    return _WORDS.get(word.lower().rstrip(",.:")), note.strip() or None


def ask(output: Output, approval: Record) -> list[Item] | None:
    """Ask the person at the terminal about each item, and return the decisions. Return None if the
    person does not answer."""
    items: list[Item] = []
    for item in approval["items"]:
        # a single item was already shown with the event of the request
        if len(approval["items"]) > 1:
            output.pieces([(f"{render.item(item)}\n", "bold yellow")])
        answered = ask_value(output, item) if wants_value(item) else _ask(output)
        if answered is None:
            return None
        items.append({"item_id": item["item_id"], **answered})
    return items


def _ask(output: Output) -> Item | None:
    while True:
        answer = output.ask("approve? y or n, then a note if you like (empty: leave it) ")
        if not answer:
            return None
        decision, note = parse_answer(answer)
        if decision is not None:
            return {"decision": decision} | ({"note": note} if note else {})
        output.notice(f"{render.short(answer)} is no answer: begin with y or n")


def wants_value(item: Record) -> bool:
    return item["kind"] in _WANTS_VALUE


def ask_value(output: Output, item: Record) -> Item | None:
    """Ask for the value of an item, and return the item's approval. Return None if the person does
    not answer."""
    for name in ("input_schema", "options"):
        if item.get(name):
            output.pieces([(f"{name}: {render.short(item[name], 2000)}\n", "dim")])
    answer = output.ask("your answer, JSON or text (empty: leave it) ")
    return {"decision": "approve", "value": parse_value(answer)} if answer else None
