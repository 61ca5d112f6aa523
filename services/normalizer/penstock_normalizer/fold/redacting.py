"""Applies a run's redactions to its events, before they are numbered. Pure.

A text that comes in pieces, such as a message, is held back from where a match may have begun until
its next pieces decide it, or until the text ends; in a run with a checker, always until it ends.
All other events come whole.

Rules with `where: egress` are applied to what the others have left, and the drafts then have both
forms of their data (see `penstock.bus.masking`). Both forms of a text have their borders at the
same places, at which no match is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.bus.records.runs import MAX_SHOWN_CHARACTERS
from penstock.dialects.base import Draft, JsonObject, Pause, PauseItem, cut_off
from penstock.events import TERMINAL
from penstock.redactions.json_text import JsonScanner
from penstock.redactions.scanner import Redactor, Scanner, redactor_of, rules_where
from penstock_normalizer.fold.checking import CheckedRedactor, Question, WholeText, whole_json

# The fields of `data` that say what an event is and what it belongs to. They are no content: ids
# and names by which agents, tools and people are known, states, numbers and times. All other fields
# are searched, also those that come to an event later.
_NO_CONTENT_WORDS: Final = """
    agent attempt attempts automatic automation budget by code confirmed content_type cost deciders
    deciders_required delivery_id depth digest duration_s execution expires_at
    forked_from idempotency_key iteration kind media_type on_behalf_of outcome pending policy
    protocol provider redactions retryable role size_bytes status_code step subrun tags team_name
    tenant to tool usage version worker_name workflow
"""
_NO_CONTENT: Final = frozenset(_NO_CONTENT_WORDS.split())
# The types of events without content.
_NO_CONTENT_TYPES: Final = frozenset({"llm.usage", "system.metrics"})
# The keys of messages, of their calls, and of items of approvals whose values other events repeat.
_IDS: Final = frozenset({"id", "item_id", "tool_call_id", "toolCallId", "role", "type", "digest"})
_WITH_IDS: Final = frozenset({"items", "messages", "toolCalls", "tool_calls"})
# The fields that repeat the text of `llm.stream`, and have its result.
_SPOKEN: Final = frozenset({"content", "summary"})
_MESSAGE_END: Final = "llm.message_completed"
_REQUEST: Final = "approval.requested"
_START: Final = "lifecycle.started"


class _Pieces(NamedTuple):
    """Says of events with a piece of a text which field has the piece, and whose text it is."""

    text: str
    owner: str


_PIECES: Final[Mapping[str, _Pieces]] = {
    "llm.stream": _Pieces("content", "message_id"),
    "llm.reasoning": _Pieces("thought", "reasoning_id"),
    "llm.tool_args": _Pieces("delta", "tool_call_id"),
    "llm.tool_progress": _Pieces("delta", "tool_call_id"),
}
# By the type of an event that ends texts: the types of their pieces, and the field with their
# owner's id.
_ENDS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    _MESSAGE_END: (("llm.stream",), "message_id"),
    "llm.tool_call": (("llm.tool_args",), "tool_call_id"),
    "llm.tool_result": (("llm.tool_args", "llm.tool_progress"), "tool_call_id"),
}
# The characters that are searched at once in the event loop, for which other runs wait: of one
# draft, and of all drafts in one turn. A thousand characters in the form of cards take some
# milliseconds.
_LONG: Final = 4 * 1024
_IN_A_TURN: Final = 8 * 1024
# A text is known by the type of its pieces, its owner, and the path of an argument.
_Key = tuple[str, str, str]
_T = TypeVar("_T")


class Wait(Enum):
    """Comes before a step for which other runs should not wait: they work first, because many
    steps were made; or the step is made in a thread, because it takes long."""

    TURN = auto()
    THREAD = auto()


Asked: TypeAlias = Question | Wait


class _Searching(Protocol):
    @property
    def held(self) -> str: ...

    @property
    def is_in_match(self) -> bool: ...

    def feed(self, piece: str) -> str: ...

    def flush(self) -> str: ...


@dataclass(slots=True)
class _OpenText:
    """A text whose end has not come; `last` is the draft with its last piece, in the field
    `name`."""

    scanner: _Searching
    last: Draft
    name: str
    # Of a text that is kept: what is decided, and the pieces of the text as it came, of which no
    # event has anything yet. A long match has thousands.
    decided: str = ""
    clear: list[str] = field(default_factory=list)
    found: list[JsonObject] = field(default_factory=list)  # what no event has told yet

    def take(self) -> tuple[str, str]:
        """Return what the next event has of a text that is kept, in both forms."""
        held, clear = self.scanner.held, "".join(self.clear)
        # Of JSON, what is held back may be written in another way than it came. Then this event has
        # a little more of the JSON as it came.
        end = len(clear) - (len(held) if clear.endswith(held) else 0)
        both = self.decided, clear[:end]
        self.decided, self.clear = "", [rest] if (rest := clear[end:]) else []
        return both


@dataclass(slots=True)
class RunRedactions:
    """The redactions of one run, and its texts that are open."""

    redactor: Redactor
    version: int  # of the operator's document
    # whether requests for approvals come whole, as from a workflow; others are made by `pause`
    _has_requests: bool
    _then: RunRedactions | None = None  # those with `where: egress`
    _keeps: bool = False  # whether drafts keep their data as they came
    _open: dict[_Key, _OpenText] = field(default_factory=dict)
    _searched: int = 0  # characters in this turn, about
    _is_long: bool = False  # whether the present search takes long

    @classmethod
    def of(cls, run_id: str, redactions: Mapping[str, Any], *, is_workflow: bool) -> RunRedactions:
        version, rules = redactions["version"], redactions["rules"]
        masks = None
        if later := rules_where(rules, "egress"):
            redactor = redactor_of(run_id, {"rules": later})
            masks = cls(redactor, version, _has_requests=True, _keeps=True)
            redactions = {**redactions, "rules": rules_where(rules, "ingest")}
            if not redactions["rules"] and "check" not in redactions:
                return masks
        if is_workflow:
            redactions = _without_review(redactions)
        redactor = redactor_of(run_id, redactions)
        if (check := redactions.get("check")) is not None:
            fails_closed = check["on_failure"] == "closed"
            redactor = CheckedRedactor(redactor.rules, run_id, fails_closed=fails_closed)
        if masks is not None:
            masks.redactor.number_as(redactor)
        return cls(redactor, version, is_workflow, masks)

    @property
    def asks(self) -> bool:
        """Whether the run has a checker."""
        return isinstance(self.redactor, CheckedRedactor)

    def apply(self, draft: Draft) -> Iterator[Draft | Asked]:
        """Yield the drafts that come in place of this one: none while all its text is held back.

        If something in it blocks the run, `take_blocked` says so afterwards. A message is then
        yielded up to there, and any other draft not at all.
        """
        if self._then is None:
            return self._applied(draft)
        return self._masked(self._then, draft)

    def _masked(self, masks: RunRedactions, draft: Draft) -> Iterator[Draft | Asked]:
        for each in self._applied(draft):
            if isinstance(each, Draft):
                yield from masks.apply(each)
            else:
                yield each

    def _applied(self, draft: Draft) -> Iterator[Draft | Asked]:
        if (wait := self._wait_before(draft.data)) is not None:
            yield wait
        yield from self._texts_ended_by(draft)
        if (kind := self.take_blocked()) is not None:
            if draft.type == _MESSAGE_END:
                yield from self._cut(draft)
            self.redactor.blocked = kind
            return
        pieces = _PIECES.get(draft.type)
        if pieces is not None and isinstance(draft.data.get(pieces.text), str):
            yield from self._piece(draft, pieces, "", pieces.text)
        elif draft.type == "llm.tool_args" and isinstance(draft.data.get("value"), str):
            yield from self._piece(draft, _PIECES[draft.type], draft.data["path"], "value")
        elif draft.type in _NO_CONTENT_TYPES or (draft.type == _REQUEST and not self._has_requests):
            yield draft
        else:
            yield from self._whole(draft)

    def pause(self, pause: Pause) -> Generator[Asked, None, tuple[Pause, list[JsonObject]]]:
        """Return what people are asked, and what was taken out of it. The answer to an item that
        was changed cannot change its arguments: the agent server would get what people see. Who
        decides sees what others get masked, so that is done to the request later."""
        if self._keeps:
            return pause, []
        if (wait := self._wait_before([asdict(item) for item in pause.items])) is not None:
            yield wait
        items = yield from self._answered(lambda: [self._item(item) for item in pause.items])
        return replace(pause, items=items), self._found("items")

    def start_of(self, message: str) -> str:
        """Return the message of the start without a match at its end that has been cut off."""
        if len(message) < MAX_SHOWN_CHARACTERS:
            return message
        message = self.redactor.without_open_end(message)
        return message if self._then is None else self._then.redactor.without_open_end(message)

    def shown(self, text: str) -> Generator[Asked, None, str]:
        """Return a text of the run as its record shows it. An event has the same text, and counts
        what was taken out of it."""
        if (wait := self._wait_before(text)) is not None:
            yield wait
        clean = yield from self._answered(partial(self.redactor.text, text))
        self.redactor.take_found()
        self.take_blocked()
        return clean if self._then is None else (yield from self._then.shown(clean))

    def take_blocked(self) -> str | None:
        kind, self.redactor.blocked = self.redactor.blocked, None
        return kind

    def block(self, kind: str) -> None:
        """Stop the run as if something of this kind were blocked."""
        self.redactor.blocked = self.redactor.blocked or kind

    def take_reviewed(self) -> list[str]:
        """Return the kinds of matches about which people are asked, since the last call."""
        reviewed = self.redactor.reviewed
        if reviewed:
            self.redactor.reviewed = []
        return reviewed

    def drop_open_texts(self) -> None:
        """Forget what is held back of texts, since the run is stopped."""
        self._open.clear()
        self.redactor.waiting = 0

    def _wait_before(self, value: Any) -> Wait | None:
        """Return what must come before the search of a value."""
        size = _size(value) + self.redactor.waiting
        self._searched += size
        self._is_long = size > _LONG
        if not self._is_long and self._searched <= _IN_A_TURN:
            return None
        self._searched = 0
        return Wait.THREAD if self._is_long else Wait.TURN

    def _answered(self, search: Callable[[], _T]) -> Generator[Asked, None, _T]:
        """Return what `search` returns when the checker has seen all texts that it searches; of a
        JSON text, the checker sees the texts in it first, and then what has become of it."""
        redactor, before = self.redactor, self.redactor.blocked
        reviewed = tuple(redactor.reviewed)
        result = search()
        if not isinstance(redactor, CheckedRedactor):
            return result
        while missing := redactor.take_missing():
            question = Question(missing)
            yield question
            redactor.learn(question)
            redactor.take_found()
            redactor.blocked = before
            redactor.reviewed = list(reviewed)
            if self._is_long:
                yield Wait.THREAD
            result = search()
        redactor.forget()
        return result

    def _item(self, item: PauseItem) -> PauseItem:
        changed = {
            name: self.redactor.value(value)
            for name, value in asdict(item).items()
            if name in ("args", "description", "input_schema", "options")
        }
        return replace(item, **changed, editable=item.editable and changed["args"] == item.args)

    def _texts_ended_by(self, draft: Draft) -> Iterator[Draft | Asked]:
        if not self._open:
            return
        if draft.type in TERMINAL or draft.type == _REQUEST:
            ended = list(self._open)
        elif draft.type in _ENDS:
            types, owner = _ENDS[draft.type]
            ended = [
                key for key in self._open if key[0] in types and key[1] == draft.data.get(owner)
            ]
        else:
            return
        for key in ended:
            text = self._open.pop(key)
            text.decided += yield from self._answered(text.scanner.flush)
            if text.decided or text.clear:
                last = {name: value for name, value in text.last.data.items() if name != "title"}
                data = {**last, text.name: text.decided}
                clear = {**(text.last.clear or last), text.name: "".join(text.clear)}
                clear.pop("title", None)
                made = replace(text.last, redactions=())
                found = text.found + self._found(text.name)
                yield self._made(made, data, found, clear)

    def _piece(
        self, draft: Draft, pieces: _Pieces, path: str, name: str
    ) -> Iterator[Draft | Asked]:
        key = draft.type, str(draft.data[pieces.owner]), path
        found: list[JsonObject] = []
        as_came = draft.data
        for each in ("title", "path"):
            if (whole := draft.data.get(each)) is not None:
                clean = yield from self._answered(partial(self.redactor.text, whole))
                draft = replace(draft, data={**draft.data, each: clean})
                found += self._found(each)
        text = self._open.get(key)
        if text is None:
            is_json = draft.type == "llm.tool_args" and name == "delta"
            text = self._open[key] = _OpenText(self._searching(is_json=is_json), draft, name)
        if draft.redactions:  # what earlier rules have found, also if no event comes of this piece
            text.found += draft.redactions
            draft = replace(draft, redactions=())
        text.last = draft
        decided = text.scanner.feed(draft.data[name])
        is_last = draft.data.get("final") is True
        if is_last:
            del self._open[key]
            decided += yield from self._answered(text.scanner.flush)
        text.found += self._found(name)
        clear = ""
        if self._keeps:
            text.last = replace(draft, clear=as_came)
            text.decided += decided
            if as_came[name]:
                text.clear.append(as_came[name])
            # The rest of a match has no text in the masked form, so it comes with the match.
            is_whole = is_last or (text.decided and not text.scanner.is_in_match)
            decided, clear = text.take() if is_whole else ("", "")
        if decided or is_last or "title" in draft.data:
            found, text.found = found + text.found, []
            data = {**draft.data, name: decided}
            yield self._made(draft, data, found, {**as_came, name: clear})

    def _searching(self, *, is_json: bool) -> _Searching:
        if self.asks:
            return WholeText(self.redactor, is_json)
        return (JsonScanner if is_json else Scanner)(self.redactor)

    def _whole(self, draft: Draft) -> Iterator[Draft | Asked]:
        data, found = yield from self._answered(partial(self._fields, draft))
        if self.redactor.blocked is None:
            yield self._made(draft, data, found, draft.data)
        elif draft.type == _MESSAGE_END:
            yield from self._cut(draft)
        elif draft.type == _START:  # every run begins with this event
            yield replace(draft, data={**draft.data, **data}, redactions=found)

    def _fields(self, draft: Draft) -> tuple[JsonObject, list[JsonObject]]:
        """Return the fields of a draft up to one that blocks the run, and what was taken out."""
        found: list[JsonObject] = []
        data: JsonObject = {}
        for name, value in draft.data.items():
            if name in _NO_CONTENT or name.endswith("_id") or value is None:
                data[name] = value
            elif name in _SPOKEN and isinstance(value, str):
                data[name] = self.redactor.text(value)
            else:
                data[name] = self._field(name, value)
            found += self._found(name)
            if self.redactor.blocked is not None:
                break
        return data, found

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            if name in _WITH_IDS:
                return [self._with_ids(each) for each in value]
            if name == "delta":
                return [self._operation(each) for each in value]
        if name == "args_text" and isinstance(value, str):
            if self.asks:
                return whole_json(self.redactor, value)
            return JsonScanner(self.redactor).feed(value, last=True)
        return self.redactor.value(value)

    def _with_ids(self, value: Any) -> Any:
        """Return a message, a call of one, or an item of an approval; its own ids stay."""
        if not isinstance(value, dict):
            return self.redactor.value(value)
        return {
            self.redactor.patterns(key): inner
            if key in _IDS and isinstance(inner, str)
            else self._field(key, inner)
            for key, inner in value.items()
        }

    def _operation(self, operation: Any) -> Any:
        """Return an operation of a JSON Patch. Its paths name keys, which are searched, too."""
        if not isinstance(operation, dict):
            return self.redactor.value(operation)
        return {
            name: self._path(value)
            if name in ("path", "from") and isinstance(value, str)
            else self.redactor.value(value)
            for name, value in operation.items()
        }

    def _path(self, path: str) -> str:
        keys = (key.replace("~1", "/").replace("~0", "~") for key in path.split("/"))
        clean = (self.redactor.patterns(key) for key in keys)
        return "/".join(key.replace("~", "~0").replace("/", "~1") for key in clean)

    def _cut(self, draft: Draft) -> Iterator[Draft | Asked]:
        """Yield a message up to what blocks the run."""
        content = draft.data.get("content", "")
        content = yield from self._answered(partial(self.redactor.text, content))
        data = {name: draft.data[name] for name in ("message_id", "role")} | {"content": content}
        data |= cut_off("a redaction has stopped the run")
        yield replace(draft, data=data, redactions=self._found("content"))

    def _made(
        self, draft: Draft, data: JsonObject, found: Sequence[JsonObject], clear: JsonObject
    ) -> Draft:
        """Return the draft with other data; of a draft that is kept, with both forms."""
        redactions = [*draft.redactions, *found]
        if not self._keeps or data == clear:
            return replace(draft, data=data, redactions=redactions, clear=None)
        return replace(draft, data=data, redactions=redactions, clear=clear)

    def _found(self, name: str) -> list[JsonObject]:
        return [
            {"field": name, "kind": kind, "count": count}
            for kind, count in self.redactor.take_found().items()
        ]


def _size(value: Any) -> int:
    """Return about how many characters of a value are searched; of a long one, some."""
    size, rest = 0, [value]
    while rest and size <= _LONG:
        match rest.pop():
            case str() as text:
                size += len(text)
            case list() as values:
                rest += values
            case dict() as fields:
                size += sum(map(len, fields))
                rest += fields.values()
            case _:
                size += 8
    return size


def _without_review(redactions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the redactions of a workflow's run. It has no leg whose events could be held back, so
    what would ask people stops it."""

    def stops(rule: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**rule, "action": "block"} if rule["action"] == "review" else rule

    checks = {"check": stops(redactions["check"])} if "check" in redactions else {}
    return {**redactions, "rules": list(map(stops, redactions["rules"])), **checks}
