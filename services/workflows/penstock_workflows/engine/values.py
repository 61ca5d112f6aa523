"""Keeps large outputs out of the records, which have a reference in place of each. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from penstock_workflows.engine.records import Json, JsonObject

MAX_INLINE_BYTES: Final = 64 * 1024  # the largest output that a record has itself
# The total size in bytes of the outputs in a run's records. When this size is reached, a further
# record has its output itself only if the output has at most SMALL_BYTES.
MAX_TOTAL_BYTES: Final = 1024 * 1024
SMALL_BYTES: Final = 1024
# The levels of nesting that an output leaves free, so an output has at most about 100 levels.
# orjson writes 254 levels and pydantic reads 200. Expressions, commands, records and events put an
# output inside of other values.
SPARE_LEVELS: Final = 150


class NotStorable(ValueError):
    """A value cannot be stored as JSON, since it is nested too deep or has an impossible number."""


class ValuesNeeded(Exception):
    """An expression or an event needs values that were stored by reference.

    The service loads the values of `digests`, and makes the same call again with them.
    """

    def __init__(self, digests: Iterable[str]) -> None:
        self.digests = frozenset(digests)
        super().__init__(f"{len(self.digests)} stored values are needed")


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that the service stores under its digest before it appends the records."""

    digest: str
    payload: bytes


def reference(payload: bytes) -> JsonObject:
    """Return the reference to a value, from the value as JSON."""
    digest = hashlib.sha256(payload).hexdigest()
    return {"digest": digest, "size": len(payload)}


def kept(output: Json, total_bytes: int) -> tuple[Json, JsonObject | None, int, Stored | None]:
    """Return an output, its reference and its size for a record, and the value to store.

    A record has a small output itself, but only a reference to a large output. `total_bytes` is the
    size of all outputs that are in the run's records already.

    Raises:
        NotStorable: the output has more levels than records and events can have, or is no JSON.
    """
    payload = _dumped(output)
    limit = MAX_INLINE_BYTES if total_bytes < MAX_TOTAL_BYTES else SMALL_BYTES
    if len(payload) <= limit:
        return output, None, len(payload), None
    ref = reference(payload)
    return None, ref, 0, Stored(ref["digest"], payload)


def _dumped(output: Json) -> bytes:
    """Return a value as JSON, if there is room for more levels around it. Raises NotStorable."""
    nested = output
    for _ in range(SPARE_LEVELS):
        nested = [nested]
    try:
        return orjson.dumps(nested)[SPARE_LEVELS:-SPARE_LEVELS]
    except TypeError as error:
        raise NotStorable(f"the output cannot be stored as JSON: {error}") from None


def loaded(output: Json, ref: JsonObject | None, values: Mapping[str, Json]) -> Json:
    """Return the output, which may be a stored value.

    Raises:
        ValuesNeeded: the value is not among `values`.
    """
    if ref is None:
        return output
    if ref["digest"] not in values:
        raise ValuesNeeded([ref["digest"]])
    return values[ref["digest"]]
