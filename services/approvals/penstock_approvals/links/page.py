"""Write the page of a link as HTML. Pure.

The page loads no other files, runs no script, and hides nothing. Texts and JSON values of strangers
are no markup in it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from penstock import visible as characters
from penstock.bus.records.approvals import ApprovalRecord
from penstock.visible import TooLarge, members, text_of
from penstock_approvals.inbox.last_lines import Line
from penstock_approvals.links.form import MAX_NOTE, TYPED, VALUE, can_reject, name_to_type
from penstock_approvals.links.store import LinkRecord, State
from penstock_approvals.outcomes.automatic import is_late
from penstock_approvals.policy.model import NEEDS_VALUE

STYLE: Final = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            f"style-src 'sha256-{_STYLE_HASH}'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "cache-control": "no-store",
    # The address contains the secret, so the browser must not send the address to other sites.
    # `no-referrer` cannot be used: browsers would then send `Origin: null` with the form, and the
    # check of the origin would refuse the form.
    "referrer-policy": "strict-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-robots-tag": "noindex",
}
LONG: Final = 600  # A text with more characters is folded, but the page has the whole text.
MAX_CHARS: Final = 1_000_000
_OUTCOMES: Final = {"approved": "approved", "rejected": "rejected", "mixed": "decided in parts"}


@dataclass(frozen=True, slots=True)
class View:
    """The content of a link's page at the time `now`. `problem` says why a form was refused,
    `may_take_back` whether the vote that was given by the link can be taken back."""

    link: LinkRecord
    state: State
    record: ApprovalRecord | None
    now: datetime
    may_take_back: bool = False
    lines: Sequence[Line] = ()
    problem: str | None = None
    form: Mapping[str, str] | None = None  # the values of the refused form


def page(view: View) -> str:
    """Return the page, which shows the request and the form only while the link can be used."""
    record = view.record
    if view.state is not State.OPEN or record is None:
        title, text = _unusable_text(view)
        panel = f'<div class="panel" role="status"><p>{text}</p></div>'
        return _document(title, panel + (_take_back(view.link) if view.may_take_back else ""))
    try:
        items = "".join(_item(item) for item in record.items)
    except TooLarge:
        return message(
            "Too large for this page",
            "The request is too large to be shown whole, so it cannot be decided here. Decide it "
            f"over the API or on the command line: approval {record.approval_id}.",
        )
    body = (
        (_notice(view.problem) if view.problem else "")
        + f"<p>{_name(record.agent)} asks for a decision before it goes on.</p>"
        + _facts(record, view)
        + items
        + _lines(view.lines)
        + _remarks(record)
        + _form(record, view.link, view.form or {})
    )
    return _document(f"Approval for {record.agent}", body)


def message(title: str, text: str) -> str:
    return _document(title, _notice(text))


def _notice(text: str) -> str:
    return f'<div class="panel notice" role="alert"><p>{visible(text)}</p></div>'


def _document(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{visible(title, lines=False)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{visible(title, lines=False)}</h1>{body}</main></body></html>"
    )


def _unusable_text(view: View) -> tuple[str, str]:
    """Return the title and the text, as HTML, for a link that cannot be used."""
    record, link = view.record, view.link
    decision = record.decision if record is not None else None
    outcome = _OUTCOMES[decision.outcome] if decision is not None else "still open"
    by = f" by {_name(decision.by)}" if decision is not None else ""
    at = f" on {_time(decision.at)}" if decision is not None else ""
    reason = f": {visible(record.reason)}" if record is not None and record.reason else ""
    waits = ""
    if record is not None and record.status == "pending":
        deadline = _deadline(record, view.now)
        waits = f" It needs {_approvals(record)}." if record.need > 1 else ""
        waits += f" Others can decide by {deadline}." if deadline else ""
    mine = "approved" if link.used_for == "approve" else "rejected"
    texts: Mapping[State, tuple[str, str]] = {
        State.USED: (
            f"You have {mine} this",
            f"This link was used, and works only once. The request is {outcome}{by}{at}.{waits}",
        ),
        State.DECIDED: ("Already decided", f"The request was {outcome}{by}{at}."),
        State.WITHDRAWN: ("No longer needed", f"The request was withdrawn{reason}."),
        State.LATE: ("Too late", "The deadline of the request has passed."),
        State.EXPIRED: (
            "This link has expired",
            f"The request still waits for a decision.{waits} Ask for a new link.",
        ),
        State.VOTED: (
            "You have decided this",
            f"Your decision is counted. The request waits for the decisions of others.{waits}",
        ),
        State.CHANGED: (
            "The request has changed",
            "Somebody has edited it since this link was made. Ask for a new link.",
        ),
        State.REFUSED: (
            "Not for you",
            "The policy does not let the holder of this link decide, or the person who made the "
            "link has voted already.",
        ),
        State.GONE: ("No longer there", "The request is no longer kept."),
    }
    return texts[view.state]


def _facts(record: ApprovalRecord, view: View) -> str:
    link = view.link
    who = [_name(link.user)] if link.user else []
    who += [f"for the role {_name(link.role)}"] if link.role else []
    policy = record.policy
    agreed = [vote for vote in record.votes if not vote.void]
    voted = ", ".join(_name(vote.by) for vote in agreed)
    facts = [
        ("Asked by", _name(record.user_id)),
        ("Agent", _name(record.agent)),
        ("Asked at", _time(record.requested_at)),
        ("Decide by", _deadline(record, view.now)),
        ("Needs", f"{_approvals(record)}: {voted or 'nobody'}" if record.need > 1 else ""),
        ("Rule", _name(policy.rule_id) if policy is not None and policy.version else ""),
        ("You decide as", " ".join(who)),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value)
    return f'<dl class="panel">{rows}</dl>'


def _item(item: Mapping[str, Any]) -> str:
    tool, kind = item.get("tool"), str(item.get("kind", ""))
    title = f"{_name(str(tool))} <span class=dim>({visible(kind)})</span>" if tool else _name(kind)
    described = item.get("description")
    text = f'<p class="line">{visible(str(described))}</p>' if described else ""
    args = item.get("args")
    shown = tree(args) if args is not None else '<p class="dim">without arguments</p>'
    more = "".join(
        f"<h3>{title}</h3>{tree(item[name])}"
        for name, title in (
            ("input_schema", "Form of the answer"),
            ("options", "Options"),
            ("subrun", "Inner run"),
        )
        if item.get(name)
    )
    return f'<section class="panel"><h2>{title}</h2>{text}{shown}{more}</section>'


def _lines(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    shown = "".join(
        f'<li><span class="dim">{visible(line.what)}</span> '
        f'<bdi class="line">{visible(line.text)}</bdi></li>'
        for line in lines
    )
    return f"<section><h2>The run so far</h2><ol>{shown}</ol></section>"


def _remarks(record: ApprovalRecord) -> str:
    if not record.remarks:
        return ""
    shown = "".join(
        f'<li><span class="dim">{said.kind} of {_name(said.by)}'
        f"{f' to {_name(said.to)}' if said.to else ''}</span> "
        f'<bdi class="line">{visible(said.text or "")}</bdi></li>'
        for said in record.remarks
    )
    return f"<section><h2>Questions and answers</h2><ol>{shown}</ol></section>"


def _form(record: ApprovalRecord, link: LinkRecord, entered: Mapping[str, str]) -> str:
    fields = "".join(
        _field(number, item, entered.get(f"{VALUE}{number}", ""))
        for number, item in enumerate(record.items)
        if item.get("kind") in NEEDS_VALUE
    )
    name = name_to_type(record)
    typed = (
        f'<label for="{TYPED}">This is dangerous. To approve it, type {_name(name)}</label>'
        f'<input id="{TYPED}" name="{TYPED}" spellcheck="false">'
        if name is not None
        else ""
    )
    note = visible(entered.get("note", ""))
    reject = (
        '<button class="reject" name="decision" value="reject">Reject</button>'
        if can_reject(record)
        else ""
    )
    return (
        '<form method="post" autocomplete="off">'
        f'<input type="hidden" name="csrf" value="{link.signature()}">{fields}{typed}'
        '<label for="note">Reason or note (the agent gets it, too), or a question for '
        f"{_name(record.user_id)}</label>"
        f'<textarea id="note" name="note" rows="3" maxlength="{MAX_NOTE}">{note}</textarea>'
        '<div class="buttons"><button name="decision" value="approve">Approve</button>'
        f'{reject}<button class="ask" name="decision" value="ask">Ask</button></div></form>'
        f'<p class="dim">This link works once. Digest {visible(record.digest[:19])}…</p>'
    )


def _take_back(link: LinkRecord) -> str:
    return (
        f'<form method="post"><input type="hidden" name="csrf" value="{link.signature()}">'
        '<div class="buttons"><button name="decision" value="take-back">'
        "Take back my decision</button></div></form>"
    )


def _field(number: int, item: Mapping[str, Any], entered: str) -> str:
    name = f"{VALUE}{number}"
    what = visible(str(item.get("tool") or item.get("kind")), lines=False)
    label = f'<label for="{name}">Answer for {what} (JSON, or text)</label>'
    if item.get("kind") == "credential":
        return f'{label}<input id="{name}" name="{name}" type="password">'
    if item.get("kind") == "budget":
        options = "".join(
            f"<option{' selected' if each == entered else ''}>{visible(each, lines=False)}</option>"
            for each in item["input_schema"]["enum"]
        )
        label = f'<label for="{name}">Raise the limit by</label>'
        return f'{label}<select id="{name}" name="{name}">{options}</select>'
    return f'{label}<textarea id="{name}" name="{name}" rows="3">{visible(entered)}</textarea>'


def _approvals(record: ApprovalRecord) -> str:
    agreed = sum(not vote.void for vote in record.votes)
    return f"{record.need} people; {agreed} so far"


def _deadline(record: ApprovalRecord, now: datetime) -> str:
    """Return the deadline, and the time until it when the page was loaded; nothing without a
    deadline, or after it."""
    if record.expires_at is None or is_late(record, now):
        return ""
    minutes = int((datetime.fromisoformat(record.expires_at) - now).total_seconds() // 60)
    days, hours = minutes // 1440, minutes // 60 % 24
    parts = [(days, "d"), (hours, "h"), (minutes % 60 if not days else 0, "min")]
    remaining = " ".join(f"{number} {unit}" for number, unit in parts if number)
    return f"{_time(record.expires_at)}, in {remaining or 'less than a minute'}"


def _time(stamp: str) -> str:
    """Return a time for people, to the minute; a text that is no time as it is."""
    try:
        return f"{datetime.fromisoformat(stamp).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return visible(stamp)


def _name(text: str | None) -> str:
    return f"<bdi>{visible(text or '', lines=False)}</bdi>"


def visible(text: str, *, lines: bool = True) -> str:
    """Return the text as HTML. A mark with the character's code replaces each character that cannot
    be seen; without `lines`, also each line break."""
    parts = text.split("\n") if lines else [text]
    return "\n".join(characters.visible(part, escape, "<mark>{}</mark>".format) for part in parts)


def tree(value: Any) -> str:
    """Return the value as HTML. Raises TooLarge for more than `MAX_CHARS` characters."""
    pieces: list[str] = []
    size = 0
    for piece in _pieces(value):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARS:
            raise TooLarge
    return "".join(pieces)


def _pieces(value: Any) -> Iterator[str]:
    if not (isinstance(value, dict | list) and value):
        yield _text(text_of(value))
        return
    yield "<ul>"
    depth = 0
    for member in members(value):
        yield "</ul></li>" * (depth - member.depth)
        depth = member.depth
        yield f'<li><bdi class="key">{visible(member.name, lines=False)}</bdi> '
        if member.text is None:
            yield "<ul>"
            depth += 1
        else:
            yield f"{_text(member.text)}</li>"
    yield "</ul></li>" * depth + "</ul>"


def _text(text: str) -> str:
    kind = "text" if text.startswith('"') else "value"
    shown = f'<bdi class="{kind}">{visible(text)}</bdi>'
    if len(text) <= LONG:
        return shown
    return f"<details><summary>{len(text)} characters</summary>{shown}</details>"
