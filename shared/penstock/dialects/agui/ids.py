"""Ids of messages and tool calls in a thread, and of interrupts.

Canonical ids are unique in their run only (`msg-1-1`), and an upstream may use the same id in each
run. An AG-UI client keeps all the messages of a thread by id, and appends to an id that it knows:
without a qualifier it would glue the answers of two runs together. So the encoder qualifies each id
of a run with that run:

    <the last 12 characters of the run's id> "." <canonical id>

What a client sends back goes to an AG-UI upstream without the qualifier (`own_messages`).

An interrupt names the approval and its item: `<approval id> "/" <item id>`. An approval id is a
UUID; an item id is the upstream's and may hold anything, "/" too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

JsonObject = dict[str, Any]

SCOPE_LENGTH: Final = 12

# The authors of such messages gave them their ids.
_CLIENTS: Final = frozenset({"user", "system", "developer"})
_SCOPED = re.compile(rf"[0-9A-Za-z_-]{{{SCOPE_LENGTH}}}\.(.*)", re.DOTALL)


def scope_of(run_id: str) -> str:
    """The beginning of this run's ids."""
    return f"{run_id[-SCOPE_LENGTH:].rjust(SCOPE_LENGTH, '0')}."


def unscoped(id: str) -> str:
    """The canonical id in one that an encoder made; an id without a qualifier stays as it is."""
    match = _SCOPED.fullmatch(id)
    return match[1] if match else id


@dataclass(slots=True)
class Names:
    """The names by which the client knows the ids of one run.

    An id that the run itself has begun to use (`begin`) has the run's scope. Another id came with a
    snapshot of the conversation: it belongs to an earlier run or to the client, and keeps the name
    that the snapshot gave it. Message ids and call ids are one set, since a client makes a message
    of a call's id where no message asks for the call.
    """

    scope: str = ""
    _own: dict[str, str] = field(default_factory=dict)
    _restated: dict[str, str] = field(default_factory=dict)

    def begin(self, id: str) -> str:
        """The name of an id that the run begins to use."""
        name = self._own[id] = self.scope + id
        return name

    def of(self, id: str) -> str:
        """The name of an id that an event refers to."""
        return self._own.get(id) or self._restated.get(id) or self.begin(id)

    def restate(self, messages: Sequence[JsonObject]) -> Restated:
        """The messages of a snapshot with the names of their ids. Changes nothing here."""
        return Restated(self.scope, self._own, messages)

    def keep(self, restated: Restated) -> None:
        """Takes the names of a snapshot that the client received."""
        self._restated = restated.names


class Restated:
    """The messages of a conversation with the names of their ids; `messages` are copies.

    `own` are the ids that the run has begun to use. `known` are messages whose ids have names
    already: the same ids keep these names, in the same order. An id that occurs more than once is
    used by several runs: the last one is this run's, if it is one of `own`, and a number
    distinguishes each earlier one, as in `000000000001.m1`. A foreign id that looks qualified gets
    the number 0. Without the number, `own_messages` would remove its beginning.
    """

    def __init__(
        self,
        scope: str,
        own: Collection[str],
        messages: Sequence[JsonObject],
        known: Sequence[JsonObject] = (),
    ) -> None:
        self._scope = scope
        self._own = own
        self._known = _by_own_id(known)
        self._total = Counter(_ids(messages))
        self._total_calls = Counter(id for each in messages for id in _ids(_calls(each)))
        self._seen: Counter[str] = Counter()
        self._seen_calls: Counter[str] = Counter()
        self._called: dict[str, str] = {}  # the name of the last call of each id so far
        self.names: dict[str, str] = {}
        self.messages = [self._message(each) for each in messages]

    @property
    def sure(self) -> Sequence[JsonObject] | None:
        """The first messages, whose ids the client knows; None where they are all but the last.

        A client keeps known messages in their place and appends the others. An answer of an earlier
        run would change its place, since this run cannot find the client's id of it. A client that
        first gets the messages before it takes all others in their order.
        """
        for at, message in enumerate(self.messages[:-1]):
            id = message.get("id")
            if message.get("role") not in _CLIENTS and not self._is_known(id):
                return self.messages[:at]
        return None

    def _is_known(self, name: Any) -> bool:
        if not isinstance(name, str):
            return False
        return name == self._scope + unscoped(name) and unscoped(name) in self._own

    def _message(self, message: JsonObject) -> JsonObject:
        named = dict(message)
        if isinstance(id := message.get("id"), str):
            named["id"] = self._name(id, self._total, self._seen)
        if isinstance(calls := message.get("toolCalls"), list):
            named["toolCalls"] = [self._call(each) for each in calls]
        if isinstance(asked := message.get("toolCallId"), str):
            named["toolCallId"] = self._called.get(asked) or self._one(asked, 0, last=True)
        return named

    def _call(self, call: Any) -> Any:
        if not (isinstance(call, dict) and isinstance(id := call.get("id"), str)):
            return call
        self._called[id] = self._name(id, self._total_calls, self._seen_calls)
        return {**call, "id": self._called[id]}

    def _name(self, id: str, total: Counter[str], seen: Counter[str]) -> str:
        name = self._one(id, seen[id], last=total[id] == seen[id] + 1)
        seen[id] += 1
        self.names[id] = name
        return name

    def _one(self, id: str, number: int, *, last: bool) -> str:
        if last and id in self._own:
            return self._scope + id
        if number < len(names := self._known.get(id, ())):
            return names[number]
        if number or _SCOPED.fullmatch(id):
            return f"{number:0{SCOPE_LENGTH}}.{id}"
        return id


def _by_own_id(messages: Sequence[JsonObject]) -> dict[str, list[str]]:
    """The names of the messages and calls, by their ids without a qualifier."""
    found: dict[str, list[str]] = {}
    for message in messages:
        for name in _ids((message, *_calls(message))):
            names = found.setdefault(unscoped(name), [])
            if name not in names:
                names.append(name)
    return found


def ids_of_run(run_id: str, messages: Sequence[JsonObject]) -> set[str]:
    """The ids in the messages that are qualified with this run, without the qualifier."""
    scope = scope_of(run_id)
    names = (name for each in messages for name in _ids((each, *_calls(each))))
    return {name.removeprefix(scope) for name in names if name.startswith(scope)}


def call_name(messages: Sequence[JsonObject], id: str) -> str:
    """The name of the last call of that id in the messages; the id itself where there is none."""
    for message in reversed(messages):
        for name in _ids(_calls(message)):
            if unscoped(name) == id:
                return name
    return id


def _ids(entities: Iterable[JsonObject]) -> list[str]:
    return [id for each in entities if isinstance(id := each.get("id"), str)]


def _calls(message: JsonObject) -> list[JsonObject]:
    calls = message.get("toolCalls")
    return [each for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []


def own_messages(messages: Sequence[Any]) -> list[Any]:
    """Messages from a client with the ids that an AG-UI upstream knows: without one qualifier.

    A value that is no message, or has an id that is no text, stays as it is. Changed messages are
    copies.
    """
    return [_own_message(each) if isinstance(each, dict) else each for each in messages]


def _own_message(message: JsonObject) -> JsonObject:
    found = _own_ids(message, ("id", "toolCallId", "tool_call_id"))
    for key in ("toolCalls", "tool_calls"):
        if isinstance(calls := found.get(key), list):
            own = [_own_ids(each, ("id",)) if isinstance(each, dict) else each for each in calls]
            if own != calls:
                found = {**found, key: own}
    return found


def _own_ids(given: JsonObject, keys: Sequence[str]) -> JsonObject:
    changed = {
        key: own
        for key in keys
        if isinstance(id := given.get(key), str) and (own := unscoped(id)) != id
    }
    return {**given, **changed} if changed else given


def interrupt_id(approval_id: str, item_id: str) -> str:
    """The id of the interrupt for one item of an approval."""
    return f"{approval_id}/{item_id}"


def parse_interrupt_id(interrupt: str) -> tuple[str, str | None]:
    """Approval id and item id; no item for an interrupt that stands for the whole approval."""
    approval_id, slash, item_id = interrupt.partition("/")
    return approval_id, item_id if slash else None
