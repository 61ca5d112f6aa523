"""Readers of JSON that may be anything: each returns a value of its type, or the empty one."""

from __future__ import annotations

import orjson

from penstock.dialects import base
from penstock.dialects.base import Json, JsonObject


def text(value: Json) -> str | None:
    """The string, unless it is empty or none."""
    return value if isinstance(value, str) and value else None


def obj(value: Json) -> JsonObject:
    """The object, else an empty one."""
    return value if isinstance(value, dict) else {}


def array(value: Json) -> list[Json]:
    """The array, else an empty one."""
    return value if isinstance(value, list) else []


def objects(value: Json) -> list[JsonObject]:
    """The objects of an array."""
    return [item for item in array(value) if isinstance(item, dict)]


def words(value: Json) -> str:
    """A string as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def has_content(value: Json) -> bool:
    """False for what says nothing: null, false and the empty ones. Zero says something."""
    return value is not None and value is not False and value not in ("", [], {})


class Ids(base.Ids):
    """Ids that are unique in a run: the second `x` becomes `x#2`; and some of our own."""

    def make(self, prefix: str) -> str:
        """A new `prefix-1`, `prefix-2`, …: the same frames give the same ids."""
        count = self.used.get(prefix, 0) + 1
        self.used[prefix] = count
        return self.unique(f"{prefix}-{count}")

    def snapshot(self) -> JsonObject:
        """What `restore` needs."""
        return dict(self.used)

    def restore(self, state: JsonObject) -> None:
        """Goes on from a snapshot."""
        self.used = dict(state)
