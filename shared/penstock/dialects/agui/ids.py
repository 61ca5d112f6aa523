"""Makes the ids of messages, tool calls and interrupts that an AG-UI client gets (decision 0102).

Canonical ids are unique only in their run (`msg-1-1`), and an upstream may use the same id in each
run. An AG-UI client keeps all messages of a thread by their ids. If the client gets an id again,
the client appends the new text to the message with this id. So if two runs used the same id, the
client would join the answers of both runs into one message. To prevent this, the encoder puts a
qualifier, which names the run, before each id of the run:

    <the last 12 characters of the run's id> "." <canonical id>

When a client sends messages back, an AG-UI server gets these messages without the qualifiers
(`own_messages`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

JsonObject = dict[str, Any]

SCOPE_LENGTH: Final = 12

# The roles of messages whose ids come from a client and not from a run.
_CLIENTS: Final = frozenset({"user", "system", "developer"})
_SCOPED = re.compile(rf"[0-9A-Za-z_-]{{{SCOPE_LENGTH}}}\.(.*)", re.DOTALL)


def scope_of(run_id: str) -> str:
    """Include the dot."""
    return f"{run_id[-SCOPE_LENGTH:].rjust(SCOPE_LENGTH, '0')}."


def unscoped(part_id: str) -> str:
    match = _SCOPED.fullmatch(part_id)
    return match[1] if match else part_id


@dataclass(slots=True)
class Names:
    """Maps the ids of one run to names, the ids that the client gets.

    An id that the run itself has begun to use (`begin`) has the qualifier of the run (`scope`). Any
    other is from a snapshot of the conversation, belongs to an earlier run or to the client, and
    keeps its name there. Message ids and call ids are in one map, because a client makes a message
    with a call's id if the call belongs to no message.
    """

    scope: str = ""
    _own: dict[str, str] = field(default_factory=dict)
    _restated: dict[str, str] = field(default_factory=dict)

    def begin(self, part_id: str) -> str:
        name = self._own[part_id] = self.scope + part_id
        return name

    def of(self, part_id: str) -> str:
        """If the id is unknown, make a name."""
        return self._own.get(part_id) or self._restated.get(part_id) or self.begin(part_id)

    def restate(self, messages: Sequence[JsonObject]) -> Restated:
        # This map stays unchanged.
        return Restated(self.scope, self._own, messages)

    def keep(self, restated: Restated) -> None:
        self._restated = restated.names


class Restated:
    """Copies the messages of a conversation with names instead of ids (see `Names`). `own` are the
    ids that the run has begun to use, `known` messages with names.

    The last occurrence of an id in `own` belongs to this run and gets its qualifier. All other
    occurrences belong to earlier runs or to the client, and get the names that the id has in
    `known`, in the same order. If there are too few, the first occurrence keeps the id, and each
    other gets its number as the qualifier, as in `000000000001.m1`. The first occurrence of an id
    that looks as if it had a qualifier gets the number 0, because `own_messages` would otherwise
    remove the beginning of the id.
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
        self._total_calls = Counter(part_id for each in messages for part_id in _ids(_calls(each)))
        self._seen: Counter[str] = Counter()
        self._seen_calls: Counter[str] = Counter()
        # maps a call's id to the name of the last call with this id so far
        self._called: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.messages = [self._message(each) for each in messages]

    @property
    def sure(self) -> Sequence[JsonObject] | None:
        """The messages before the first whose id the client may not know; None if it knows all
        before the last.

        A client keeps the known messages of a snapshot in their places, and appends all others. But
        Penstock does not know which id it has for an answer of an earlier run: if the ids differ,
        it would append this answer in the wrong place. So it first gets a snapshot with only the
        messages before the answer, and then takes all others from the whole snapshot, in the right
        order.
        """
        for at, message in enumerate(self.messages[:-1]):
            part_id = message.get("id")
            if message.get("role") not in _CLIENTS and not self._is_known(part_id):
                return self.messages[:at]
        return None

    def _is_known(self, name: Any) -> bool:
        if not isinstance(name, str):
            return False
        return name == self._scope + unscoped(name) and unscoped(name) in self._own

    def _message(self, message: JsonObject) -> JsonObject:
        named = dict(message)
        if isinstance(part_id := message.get("id"), str):
            named["id"] = self._name(part_id, self._total, self._seen)
        if isinstance(calls := message.get("toolCalls"), list):
            named["toolCalls"] = [self._call(each) for each in calls]
        if isinstance(asked := message.get("toolCallId"), str):
            named["toolCallId"] = self._called.get(asked) or self._one(asked, 0, last=True)
        return named

    def _call(self, call: Any) -> Any:
        if not (isinstance(call, dict) and isinstance(part_id := call.get("id"), str)):
            return call
        self._called[part_id] = self._name(part_id, self._total_calls, self._seen_calls)
        return {**call, "id": self._called[part_id]}

    def _name(self, part_id: str, total: Counter[str], seen: Counter[str]) -> str:
        name = self._one(part_id, seen[part_id], last=total[part_id] == seen[part_id] + 1)
        seen[part_id] += 1
        self.names[part_id] = name
        return name

    def _one(self, part_id: str, number: int, *, last: bool) -> str:
        if last and part_id in self._own:
            return self._scope + part_id
        if number < len(names := self._known.get(part_id, ())):
            return names[number]
        if number or _SCOPED.fullmatch(part_id):
            return f"{number:0{SCOPE_LENGTH}}.{part_id}"
        return part_id


def _by_own_id(messages: Sequence[JsonObject]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in messages:
        for name in _ids((message, *_calls(message))):
            names = found.setdefault(unscoped(name), [])
            if name not in names:
                names.append(name)
    return found


def ids_of_run(run_id: str, messages: Sequence[JsonObject]) -> set[str]:
    scope = scope_of(run_id)
    names = (name for each in messages for name in _ids((each, *_calls(each))))
    return {name.removeprefix(scope) for name in names if name.startswith(scope)}


def call_name(messages: Sequence[JsonObject], part_id: str) -> str:
    """Return the name of the last call with this id, or else the id."""
    for message in reversed(messages):
        for name in _ids(_calls(message)):
            if unscoped(name) == part_id:
                return name
    return part_id


def _ids(entities: Iterable[JsonObject]) -> list[str]:
    return [id for each in entities if isinstance(id := each.get("id"), str)]


def _calls(message: JsonObject) -> list[JsonObject]:
    calls = message.get("toolCalls")
    return [each for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []


def own_messages(messages: Sequence[Any]) -> list[Any]:
    """Return messages for an AG-UI server, which knows the ids without qualifiers. If an id has
    several, only the first is removed. Values that are no messages, and ids that are no strings,
    stay unchanged. Changed messages are copies."""
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
