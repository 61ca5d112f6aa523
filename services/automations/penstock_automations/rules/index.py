"""Finds the rules that may match an event, without a look at each rule. Pure.

Most conditions require that a field has a certain text, such as `event.data.tool == "refund"`. The
rules with such conditions are found by the text that the event has. So a user with 1,000 of these
rules costs as much as a user with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from penstock_automations.rules.records import CompiledRule

_Path = tuple[str, ...]
_ANYBODY: Final = None  # the owner under which rules that see the runs of all users are found
_UNCLEAR: Final = object()


class _Group:
    """The rules for one type of events and one owner of runs."""

    def __init__(self) -> None:
        # the rules without a required text
        self._others: list[CompiledRule] = []
        # maps the path of a field to the rules that require a text there, by this text
        self._by_text: dict[_Path, dict[str, list[CompiledRule]]] = {}

    def add(self, rule: CompiledRule) -> None:
        required = rule.condition.required if rule.condition is not None else ()
        if not required:
            self._others.append(rule)
            return
        # Of several fields, the deepest tells the most: `event.type` is often required, too.
        path, text = max(required, key=lambda each: len(each[0]))
        self._by_text.setdefault(path[1:], {}).setdefault(text, []).append(rule)

    def candidates(self, event: Mapping[str, Any]) -> Iterator[CompiledRule]:
        yield from self._others
        for path, by_text in self._by_text.items():
            found = _field(event, path)
            if found is _UNCLEAR:
                for rules in by_text.values():
                    yield from rules
            elif isinstance(found, str):
                yield from by_text.get(found, ())


class RuleIndex:
    """The rules that match events now."""

    def __init__(self, rules: Iterable[CompiledRule]) -> None:
        self._groups: dict[str, dict[str | None, _Group]] = {}
        for rule in rules:
            owner = _ANYBODY if rule.record.all_users else rule.record.owner.user_id
            for type_ in rule.types if rule.matches_now else ():
                self._groups.setdefault(type_, {}).setdefault(owner, _Group()).add(rule)

    def has_type(self, type_: str) -> bool:
        return type_ in self._groups

    def candidates(
        self, type_: str, owner: str, event: Mapping[str, Any]
    ) -> Iterator[CompiledRule]:
        """Yield the rules whose condition may hold for an event of the owner's run."""
        groups = self._groups.get(type_, {})
        for key in (_ANYBODY, owner):
            if (group := groups.get(key)) is not None:
                yield from group.candidates(event)


def _field(event: Mapping[str, Any], path: _Path) -> Any:
    """Return the value of a field, and None if it is missing.

    A condition that reads a missing field does not hold. But if the value above a field is no
    object, the condition fails, and its owner gets to know the failure. So the result is then
    `_UNCLEAR`.
    """
    value: Any = event
    for name in path:
        if not isinstance(value, dict):
            return _UNCLEAR
        if name not in value:
            return None
        value = value[name]
    return value
