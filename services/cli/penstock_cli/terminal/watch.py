"""Ask the person at the terminal about each approval that waits for a decision, one after
another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final

from penstock.visible import TooLarge, members, visible
from penstock_cli.terminal import approvals, render
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.render import Piece
from penstock_client import ApiError

MAX_CHARS: Final = 100_000


def lines(value: Any) -> list[str]:
    """Return an object as lines. Raises TooLarge for more than `MAX_CHARS` characters."""
    made: list[str] = []
    size = 0
    for member in members(value):
        text = "" if member.text is None else f" {visible(member.text)}"
        made.append(f"{'  ' * member.depth}{visible(member.name)}:{text}")
        size += len(made[-1])
        if size > MAX_CHARS:
            raise TooLarge
    return made


Record = Mapping[str, Any]
Edits = dict[str, dict[str, Any]]  # maps an item's id to the item's edited arguments

INTERRUPTED: Final = 130
USAGE: Final = 2
_BATCH: Final = 20


class Step(Enum):
    """The next step after an answer."""

    DONE = auto()  # The decision or vote was sent; ask about the next approval.
    AGAIN = auto()  # Ask about the same approval again.
    SKIP = auto()  # Do not ask about the approval again until it changes.
    QUIT = auto()


_WORDS: Final = {
    word: letter
    for letter, words in {
        "a": ("a", "approve", "y", "yes"),
        "r": ("r", "reject", "n", "no"),
        "s": ("s", "skip"),
        "e": ("e", "edit"),
        "i": ("i", "items"),
        "q": ("q", "quit"),
    }.items()
    for word in words
}


def parse_answer(text: str) -> tuple[str | None, str | None]:
    """Return the letter and the note of an answer such as `r too risky`. A missing or unknown part
    is None."""
    word, _, note = text.strip().partition(" ")
    return _WORDS.get(word.lower().rstrip(",.:")), note.strip() or None


def described(approval: Record, now: datetime) -> list[Piece]:
    """Return the text about an approval that is shown before its items. Pure."""
    policy, votes = approval.get("policy"), approval.get("votes") or []
    approvers = [visible(str(vote["by"])) for vote in votes if not vote.get("void")]
    need = int(approval.get("need") or 1)
    facts = {
        "agent": approval["agent"],
        "asked by": f"{approval['user_id']}, session {approval['session_id']}, run "
        f"{approval['run_id']}",
        "rule": f"{policy['rule_id']}, version {policy['version']}" if policy else None,
        "deadline": _deadline(approval.get("expires_at"), now),
        "approved": f"{len(approvers)} of {need}" + (f" ({', '.join(approvers)})" * bool(approvers))
        if need > 1
        else None,
    }
    pieces: list[Piece] = [(f"\n{approval['approval_id']}\n", "bold yellow")]
    for name, value in facts.items():
        if value is not None:
            pieces += [(f"{name:<9} ", "dim"), (f"{visible(str(value))}\n", "")]
    for said in approval.get("remarks") or []:
        to = f" to {said['to']}" if said.get("to") else ""
        text = f"{said['kind']} of {said['by']}{to}: {said.get('text') or ''}"
        pieces.append((f"{visible(text)}\n", ""))
    return pieces


def item_lines(item: Record, args: Mapping[str, Any] | None) -> list[Piece]:
    """Return an item with its arguments as a sorted tree. Pure. Raises TooLarge."""
    title = visible(str(item.get("tool") or item["kind"]))
    pieces: list[Piece] = [(f"\n{title}", "bold"), (f"  {item['kind']}\n", "dim")]
    if item.get("description"):
        pieces.append((f"{visible(str(item['description']))}\n", ""))
    pieces += [(f"  {line}\n", "") for line in lines(args or {})]
    return pieces


def _deadline(expires_at: str | None, now: datetime) -> str | None:
    if expires_at is None:
        return None
    left_s = (datetime.fromisoformat(expires_at) - now).total_seconds()
    if left_s <= 0:
        return f"{expires_at}, passed"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left_s >= size:
            return f"{expires_at}, {left_s / size:.0f} {unit} left"
    return f"{expires_at}, now"


class Watch:
    """Asks about each approval that waits for the caller, until the caller quits."""

    def __init__(
        self,
        api: Api,
        output: Output,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._output = output
        self._now = now
        # Maps the id of a skipped approval to the time of its last change.
        self._skipped: dict[str, str] = {}

    def run(self) -> int:
        """Ask until the caller quits; return the exit code. Raises PenstockError."""
        if not self._output.is_interactive:
            self._output.notice(
                "penstock: nobody can be asked here: `approvals watch` needs a terminal. "
                "`approvals list --mine --json` lists what waits"
            )
            return USAGE
        try:
            with closing(self._api.changes()) as changes:
                # The first frame says that the stream is open. Without it, a service that is
                # restarted right after the first look would end this command.
                next(changes)
                told = False
                while True:
                    approval = self._next()
                    if approval is None:
                        if not told:
                            self._output.notice("nothing waits for you; Ctrl-C ends this")
                        told = True
                        next(changes)
                        continue
                    told = False
                    if self._ask(approval) is Step.QUIT:
                        return 0
        except KeyboardInterrupt:
            self._output.notice("\nstopped; what you have not decided still waits")
            return INTERRUPTED

    def _next(self) -> Record | None:
        """Return the most urgent approval that waits for the caller and was not skipped."""
        found, _ = self._api.approvals(_BATCH + len(self._skipped), waits_for="me")
        return next(
            (each for each in found if self._skipped.get(each["approval_id"]) != _state(each)),
            None,
        )

    def _ask(self, approval: Record) -> Step:
        edits: Edits = {}
        while True:
            try:
                self._show(approval, edits)
            except TooLarge:
                self._output.notice(
                    f"penstock: {approval['approval_id']} is too large to be shown whole, so it "
                    "cannot be decided here; `approvals show` has it"
                )
                step = Step.SKIP
            else:
                step = self._answer(approval, edits)
            if step is Step.AGAIN:
                continue
            if step is Step.SKIP:
                self._skipped[approval["approval_id"]] = _state(approval)
            return step

    def _show(self, approval: Record, edits: Edits) -> None:
        pieces = described(approval, self._now())
        for item in approval["items"]:
            args = edits.get(item["item_id"], item.get("args"))
            pieces += item_lines(item, args)
        self._output.pieces(pieces)

    def _answer(self, approval: Record, edits: Edits) -> Step:
        items = approval["items"]
        more = ", [i]tem by item" * (len(items) > 1)
        more += ", [e]dit" * any(item.get("editable") for item in items)
        question = f"\n[a]pprove, [r]eject, [s]kip{more}, [q]uit; then a note if you like: "
        answer = self._output.ask(question)
        if answer is None:
            return Step.QUIT  # the person has ended the input
        letter, note = parse_answer(answer)
        match letter:
            case "a":
                decided = self._approved(approval, edits)
            case "r":
                decided = approvals.decided(approval, "reject")
            case "i":
                decided = approvals.ask(self._output, approval)
            case "e":
                self._edit(approval, edits)
                return Step.AGAIN
            case "s":
                return Step.SKIP
            case "q":
                return Step.QUIT
            case _:
                return Step.AGAIN
        is_meant = decided is not None and self._is_meant(approval, decided)
        return self._decide(approval, decided or [], note) if is_meant else Step.AGAIN

    def _is_meant(self, approval: Record, decided: Sequence[Mapping[str, Any]]) -> bool:
        """Have the person type the name of each tool that a rule calls dangerous and that is
        approved. Return False if the person types something else."""
        approved = {each["item_id"] for each in decided if each["decision"] == "approve"}
        rulings = approval.get("rulings") or []
        dangerous = {each["item_id"] for each in rulings if each.get("danger")}
        for item in approval["items"]:
            if item["item_id"] not in approved & dangerous:
                continue
            name = visible(str(item.get("tool") or item["kind"]))
            if self._output.ask(f"this is dangerous: to approve it, type {name} ") != name:
                self._output.notice("that is not its name: nothing is decided")
                return False
        return True

    def _approved(self, approval: Record, edits: Edits) -> list[dict[str, Any]] | None:
        """Ask for the needed values, and return the approval of all items; None without a value."""
        values = {}
        for item in approval["items"]:
            if not approvals.wants_value(item):
                continue
            value = approvals.ask_value(self._output, item)
            if value is None:
                return None
            values[item["item_id"]] = value["value"]
        decided = approvals.decided(approval, "approve", values)
        return [
            item | ({"args": edits[item["item_id"]]} if item["item_id"] in edits else {})
            for item in decided
        ]

    def _edit(self, approval: Record, edits: Edits) -> None:
        """Ask for new values of arguments. The service refuses what the policy does not allow."""
        for item in approval["items"]:
            if not item.get("editable"):
                continue
            self._output.pieces([(f"{render.item(item)}\n", "bold")])
            args = dict(edits.get(item["item_id"], item.get("args") or {}))
            while answer := self._output.ask("NAME=VALUE, JSON or text (empty: done) "):
                try:
                    args |= [approvals.parse_value_of(answer)]
                except ValueError as error:
                    self._output.notice(str(error))
            if args != (item.get("args") or {}):
                edits[item["item_id"]] = args

    def _decide(self, approval: Record, items: list[dict[str, Any]], note: str | None) -> Step:
        try:
            after = self._api.decide(approval, items, note)
        except ApiError as error:
            self._output.notice(f"penstock: {error}")
            # Status 422 means that the decision does not fit. Any other refusal means that the
            # approval has changed.
            return Step.AGAIN if error.status == 422 else Step.SKIP
        decision = after.get("decision")
        if decision is not None:
            self._output.notice(decision["outcome"])
        else:
            self._output.notice(approvals.waits(after) or after["status"])
        return Step.DONE


def _state(approval: Record) -> str:
    return str(approval.get("updated_at"))
