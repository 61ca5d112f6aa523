"""Render canonical events as text for a terminal. Pure.

A piece is a text with a style of the library rich (`dim`, `bold red`, or empty). All texts of
agents and users are shown without control characters, because an escape sequence in an agent's
answer must not reach the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Piece = tuple[str, str]
Data = Mapping[str, Any]

MAX_VALUE_CHARS = 200

_THOUGHT = "dim italic"
_CONTROLS = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t\x85"
}


def clean(text: object) -> str:
    """Return the text without control characters; line ends and tabs are kept."""
    return str(text).replace("\r\n", "\n").replace("\x85", "\n").translate(_CONTROLS)


def short(value: object, max_chars: int = MAX_VALUE_CHARS) -> str:
    """Return a value as text on one line, cut to `max_chars`. A value that is no string is written
    as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(clean(text).split())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def money(micros: int) -> str:
    """Return millionths as a number of units, with at least two decimal places: `0.000597`."""
    text = f"{micros / 1_000_000:.6f}"
    return text[:-4] + text[-4:].rstrip("0")


def call(tool: object, args: object) -> str:
    """Return a tool call as `tool(name="value", …)`."""
    if not isinstance(args, Mapping):
        return f"{short(tool)}({'' if args is None else short(args)})"
    inside = ", ".join(
        f"{short(name)}={short(json.dumps(value, ensure_ascii=False))}"
        for name, value in args.items()
    )
    return f"{short(tool)}({inside})"


def item(asked: Data) -> str:
    """Return an approval's item as text: the tool call, the question, or both."""
    parts = [call(asked["tool"], asked.get("args"))] if asked.get("tool") else []
    if asked.get("description"):
        parts.append(short(asked["description"]))
    return " - ".join(parts) or short(asked.get("kind", "decision"))


@dataclass(slots=True)
class _Text:
    """A streamed text, with its author and the part that was not shown yet."""

    key: str
    run: str | None  # the id of a step's or worker's run; None for the followed run itself
    who: str | None
    style: str
    unshown: str = ""


@dataclass(slots=True)
class _Used:
    """The sum of events `llm.usage` and of the costs of tools. `micros` maps a currency to
    millionths of it."""

    read: int = 0
    written: int = 0
    micros: dict[str, int] = field(default_factory=dict)
    without_price: int = 0

    def add(self, data: Data) -> None:
        self.read += data.get("input_tokens") or 0
        self.written += data.get("output_tokens") or 0
        if data.get("cost") is None:
            self.without_price += 1
        else:
            self.add_cost(data["cost"])

    def add_cost(self, cost: Data) -> None:
        currency = cost["currency"]
        self.micros[currency] = self.micros.get(currency, 0) + cost["micros"]

    @property
    def anything(self) -> bool:
        """False also for a model that tells only zeros, such as the demo's scripts."""
        return bool(self.read or self.written or self.micros)

    def line(self) -> str:
        amounts = [f"{money(micros)} {currency}" for currency, micros in self.micros.items()]
        if amounts and self.without_price:
            amounts.append("calls without a known price")
        costs = f", cost {' and '.join(amounts)}" if amounts else ""
        return f"{self.read} tokens read, {self.written} written{costs}"


class View:
    """The view of one run in the terminal. The streamed pieces of a text are shown as one text.

    When several steps or workers write at the same time, the first text is shown as it arrives. All
    other texts are held until the line of the first text ends. Otherwise words of different texts
    would be mixed on one line.
    """

    def __init__(self) -> None:
        self._open: _Text | None = None  # The text whose line has not ended yet.
        # Texts that wait until the open line ends, by their keys.
        self._waiting: dict[str, _Text] = {}
        self._steps: dict[str, str] = {}  # The first step in which an agent spoke, by its name.
        self._shown: set[object] = set()  # Ids of messages whose text was shown.
        self._has_spoken = False  # Whether a text of the followed run itself was shown.
        self._latest = ""  # The text that was shown last.
        self._used = _Used()  # Of all events that were shown.

    def render(self, event: Mapping[str, Any]) -> list[Piece]:
        name = f"{event['event']['category']}.{event['event']['action']}"
        pieces = self._rendered(name, event)
        if name == "llm.usage":
            self._used.add(event["data"])
        elif name == "llm.tool_result" and (cost := event["data"].get("cost")) is not None:
            self._used.add_cost(cost)
        if name in _ENDS and not event.get("subrun") and self._used.anything:
            pieces += self._line((self._used.line(), "dim"), None)
        return pieces

    def _rendered(self, name: str, event: Mapping[str, Any]) -> list[Piece]:
        data: Data = event["data"]
        subrun = event.get("subrun") or {}
        who, run = self._who(subrun.get("name"), event.get("step_id")), subrun.get("id")
        message_id = data.get("message_id")
        match name:
            case "lifecycle.started":
                agent = short(data.get("agent", "an agent"))
                return self._line((f"▶ {agent}, run {short(event['run_id'])}", "dim"), None)
            case "llm.stream" | "llm.message_completed" if (
                name == "llm.stream" or message_id not in self._shown
            ):
                self._shown.add(message_id)
                text = _Text(f"{name} {run} {message_id}", run, who, "")
                return self._text(text, data["content"])
            case "llm.reasoning":
                key = f"{name} {run} {data.get('reasoning_id')}"
                return self._text(_Text(key, run, who, _THOUGHT), data["thought"])
            case "llm.message_completed" if self._open and self._open.run == run and self._waiting:
                return self._released()
            case "lifecycle.completed" if self._needs_summary(data.get("summary")):
                summary = self._text(_Text(name, None, None, ""), data["summary"])
                return summary + self._line(_LINES[name](data), None)
        return self._line(_LINES.get(name, _unknown(name))(data), who)

    def end(self) -> list[Piece]:
        """Return the pieces that show all held texts and end the open line, if there are any."""
        pieces = self._released()
        if self._open is not None:
            pieces.append(("\n", ""))
            self._open = None
        return pieces

    def _who(self, name: str | None, step: str | None) -> str | None:
        """Return the name of an agent, with the step if the agent has spoken in another step."""
        if name is None or step is None or self._steps.setdefault(name, step) == step:
            return name
        return f"{name} ({step})"

    def _needs_summary(self, summary: str | None) -> bool:
        """Return whether a run's summary must be shown, because no text has shown it already."""
        return bool(
            summary and not self._has_spoken and clean(summary).strip() != self._latest.strip()
        )

    def _text(self, text: _Text, more: str) -> list[Piece]:
        more = clean(more)
        if not more:
            return []
        opened = self._open
        if opened is not None and text.run and opened.run and opened.run != text.run:
            self._waiting.setdefault(text.key, text).unshown += more
            return []
        if opened is not None and opened.key == text.key:
            self._latest += more
            return [(more, text.style)]
        return [*self.end(), *self._begin(text, more)]

    def _begin(self, text: _Text, more: str) -> list[Piece]:
        self._open, self._latest = text, more
        self._has_spoken |= text.run is None and text.style != _THOUGHT
        name: list[Piece] = [(f"{short(text.who)}: ", "bold")] if text.who else []
        return [*name, (more, text.style)]

    def _released(self) -> list[Piece]:
        """Return the pieces of all held texts, each on a line of its own. The last line stays
        open."""
        pieces: list[Piece] = []
        for text in self._waiting.values():
            pieces += [("\n", ""), *self._begin(text, text.unshown)]
            text.unshown = ""
        self._waiting.clear()
        return pieces

    def _line(self, piece: Piece | None, who: str | None) -> list[Piece]:
        if piece is None:
            return []
        text, style = piece
        prefix = f"{short(who)}: " if who else ""
        return [*self.end(), (f"{prefix}{text}\n", style)]


def _nothing(_: Data) -> None:
    return None


def _tool_call(data: Data) -> Piece:
    waits = " (waits for an approval)" if data.get("pending") else ""
    return f"→ {call(data['tool'], data.get('args_text') or data['args'])}{waits}", "cyan"


def _tool_progress(data: Data) -> Piece | None:
    return (f"  {short(data['delta'])}", "dim") if data.get("delta") else None


_OUTCOMES = {
    "ok": ("←", "green"),
    "partial": ("← so far:", "green"),
    "error": ("← error:", "red"),
    "rejected": ("← rejected:", "yellow"),
    "expired": ("← expired:", "yellow"),
}


def _tool_result(data: Data) -> Piece:
    mark, style = _OUTCOMES.get(data["outcome"], ("←", ""))
    return f"{mark} {short(data['tool'])}: {short(data.get('error') or data['result'])}", style


def _requested(data: Data) -> Piece:
    items = "".join(f"\n  {item(asked)}" for asked in data["items"])
    return f"? approval {short(data['approval_id'])}{items}", "bold yellow"


def _decided(data: Data) -> Piece:
    note = f": {short(data['note'])}" if data.get("note") else ""
    return f"{short(data['outcome'])} by {short(data['by'])}{note}", "yellow"


def _escalated(data: Data) -> Piece:
    to = [f"the role {role}" for role in data["to"].get("roles") or ()]
    to += data["to"].get("users") or ()
    whom = short(", ".join(map(str, to)) or "everybody who decides approvals")
    return f"escalated (step {short(data['step'])}): {whom} may decide, too", "yellow"


def _remarked(data: Data) -> Piece:
    to = f" to {short(data['to'])}" if data.get("to") else ""
    text = f": {short(data['text'], 2000)}" if data.get("text") else ""
    return f"{short(data['kind'])} of {short(data['by'])}{to}{text}", "yellow"


def _failed(data: Data) -> Piece:
    return f"failed ({short(data['code'])}): {short(data['error'], 2000)}", "bold red"


def _cancelled(data: Data) -> Piece:
    by = f" by {short(data['by'])}" if data.get("by") else ""
    unsure = "" if data.get("confirmed") else "; the agent server did not confirm it"
    return f"cancelled{by} ({short(data['reason'])}{unsure})", "bold yellow"


def _retrying(data: Data) -> Piece:
    return (
        f"retry {data['retry_count']} of {data['max_retries']}: {short(data['reason'])}",
        "yellow",
    )


def _step(word: str) -> Callable[[Data], Piece]:
    return lambda data: (
        f"{word} {short(data.get('description') or data.get('workflow') or data.get('step_id'))}",
        "magenta",
    )


def _message(style: str) -> Callable[[Data], Piece]:
    return lambda data: (f"! {short(data['message'], 2000)}", style)


def _custom(data: Data) -> Piece | None:
    # Custom events that a protocol itself defines, such as `agno.ModelRequestStarted`, are not
    # shown.
    own = short(data["name"]).startswith(f"{data['protocol']}.")
    return None if own else (f"· {short(data['name'])} {short(data['value'])}", "dim")


def _unknown(name: str) -> Callable[[Data], Piece]:
    return lambda data: (f"· {name} {short(data)}", "dim")


# Maps an event that is not streamed text to the function that makes its line. An unknown event is
# shown as JSON.
_ENDS: Final = ("lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled")
_LINES: dict[str, Callable[[Data], Piece | None]] = {
    "lifecycle.paused": _nothing,  # the approval was shown before
    "lifecycle.resumed": lambda _: ("▶ resumed", "dim"),
    "lifecycle.retrying": _retrying,
    "lifecycle.completed": lambda _: ("completed", "dim"),
    "lifecycle.failed": _failed,
    "lifecycle.cancelled": _cancelled,
    "llm.message_started": _nothing,
    "llm.message_completed": _nothing,  # Its text was streamed.
    "llm.tool_args": _nothing,  # The call has the complete arguments.
    "llm.tool_call": _tool_call,
    "llm.tool_progress": _tool_progress,
    "llm.tool_result": _tool_result,
    "llm.usage": _nothing,  # The sum is shown at the run's end.
    "dispatch.team": lambda d: (f"⇒ {short(d['team_name'])}: {short(d['task'])}", "magenta"),
    "dispatch.worker": lambda d: (f"⇒ {short(d['worker_name'])}: {short(d['task'])}", "magenta"),
    "dispatch.transfer": lambda d: (
        f"⇒ {short(d['from'])} hands over to {short(d['to'])}",
        "magenta",
    ),
    "dispatch.finished": _nothing,
    "workflow.started": _step("workflow"),
    "workflow.step_started": _step("step"),
    "workflow.step_completed": _step("done:"),
    "workflow.step_failed": _step("failed:"),
    "workflow.transition": _nothing,  # The start of the next step follows.
    "workflow.completed": _nothing,  # The run's own end follows.
    "workflow.failed": _nothing,  # The run's own end follows, with the same error.
    "retrieval.started": lambda d: (f"→ search: {short(d['query'])}", "cyan"),
    "retrieval.result": lambda d: (f"← {len(d['documents'])} documents", "green"),
    "approval.requested": _requested,
    "approval.decided": _decided,
    "approval.escalated": _escalated,
    "approval.remarked": _remarked,
    "approval.reminded": lambda d: (f"reminder: decide by {short(d['expires_at'])}", "yellow"),
    "approval.expired": lambda d: (f"expired: {short(d['reason'])}", "yellow"),
    "approval.withdrawn": lambda d: (f"withdrawn: {short(d['reason'])}", "yellow"),
    "artifact.updated": lambda d: (f"file: {short(d['name'])}", "magenta"),
    "custom.event": _custom,
    "system.warning": _message("yellow"),
    "system.error": _message("red"),
}


def fields(record: Mapping[str, Any]) -> list[Piece]:
    """Return a record as text, one field per line; fields without a value are left out."""
    present: Sequence[tuple[str, Any]] = [
        (k, v) for k, v in record.items() if v not in (None, "", [])
    ]
    width = max((len(name) for name, _ in present), default=0)
    return [
        piece
        for name, value in present
        for piece in ((f"{name:<{width}}  ", "dim"), (f"{short(value, 2000)}\n", ""))
    ]
