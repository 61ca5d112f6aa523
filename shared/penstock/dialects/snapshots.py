"""The one codec of stored state: a table per class says which attributes are stored, and how.

A run may wait for longer than its frames are kept, so the state of its decoder is stored as JSON. A
key that a snapshot of an older version lacks leaves the attribute as it was made. So a class may
get further keys, and no key may change its form (tests/golden/snapshots).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from penstock.dialects.base import Json, JsonObject


@dataclass(frozen=True, slots=True)
class Form:
    """How one attribute is stored: `dump` makes JSON of its value, `load` makes the value again."""

    dump: Callable[[Any], Json]
    load: Callable[[Json], Any]


def _same(value: Any) -> Any:
    return value


AS_IS: Final = Form(_same, _same)
DICT: Final = Form(dict, dict)
LIST: Final = Form(list, list)
SET: Final = Form(sorted, set)
TUPLES: Final = Form(lambda pairs: [*map(list, pairs)], lambda pairs: [*map(tuple, pairs)])
# An object with `snapshot` and `restore` of its own. It stays the same object, because other parts
# of the decoder know it.
PART: Final = Form(lambda part: part.snapshot(), _same)


def of(cls: type[Any], **nested: Form) -> Form:
    """Return the form of a dataclass; `nested` has the forms of fields that are no plain JSON."""

    def dump(value: Any) -> Json:
        forms = nested.items()
        return asdict(value) | {name: form.dump(getattr(value, name)) for name, form in forms}

    def load(state: Json) -> Any:
        return cls(**state | {name: form.load(state[name]) for name, form in nested.items()})

    return Form(dump, load)


def optional(form: Form) -> Form:
    return Form(
        lambda value: None if value is None else form.dump(value),
        lambda state: None if state is None else form.load(state),
    )


def by(key: Callable[[JsonObject], str], form: Form) -> Form:
    """Store a dict as the list of its values; `key` finds their keys."""
    return Form(
        lambda found: [form.dump(value) for value in found.values()],
        lambda states: {key(state): form.load(state) for state in states},
    )


def each(form: Form) -> Form:
    return Form(
        lambda values: [form.dump(value) for value in values],
        lambda states: [form.load(state) for state in states],
    )


def values(form: Form) -> Form:
    return Form(
        lambda found: {key: form.dump(value) for key, value in found.items()},
        lambda states: {key: form.load(state) for key, state in states.items()},
    )


# Maps each stored key to an attribute and its form.
Table = Mapping[str, tuple[str, Form]]


class Snapshots:
    """An object whose state is stored, as its table `STORED` says."""

    __slots__ = ()

    STORED: ClassVar[Table]

    def snapshot(self) -> JsonObject:
        return {key: form.dump(getattr(self, name)) for key, (name, form) in self.STORED.items()}

    def restore(self, state: JsonObject) -> None:
        for key, (name, form) in self.STORED.items():
            if key not in state:
                continue
            if form is PART:
                getattr(self, name).restore(state[key])
            else:
                setattr(self, name, form.load(state[key]))
