"""Keeps large outputs out of the records. A record has only a reference to a large output. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from penstock_workflows.engine.records import Json, JsonObject

MAX_INLINE_BYTES: Final = 64 * 1024  # the size of the largest output inside a record
# The limit in bytes for the total size of the outputs inside a run's records. When this limit is
# reached, a further record contains its output only if the output has at most SMALL_BYTES.
MAX_TOTAL_BYTES: Final = 1024 * 1024
SMALL_BYTES: Final = 1024
# The number of nesting levels that must remain free around an output, because expressions,
# commands, records and events put an output inside other values. orjson writes at most 254 levels,
# and pydantic reads at most 200. So an output may have about 100 levels.
SPARE_LEVELS: Final = 150


class NotStorable(ValueError):
    """A value is nested too deep, or no JSON, such as an integer of more than 64 bits."""


class ValuesNeeded(Exception):
    """An expression or an event needs the stored values of `digests`: load them, and call again."""

    def __init__(self, digests: Iterable[str]) -> None:
        self.digests = frozenset(digests)
        super().__init__(f"{len(self.digests)} stored values are needed")


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that the service stores under its digest before it appends the records."""

    digest: str
    payload: bytes


def reference(payload: bytes) -> JsonObject:
    digest = hashlib.sha256(payload).hexdigest()
    return {"digest": digest, "size": len(payload)}


def divided(output: Json, total_bytes: int) -> tuple[Json, JsonObject | None, int, Stored | None]:
    """Return what a record has of an output, and what the service stores besides.

    For a small output: the output itself, None, its size in bytes, and None. For a large output:
    None, the reference, 0, and the value to store. `total_bytes` is the total size of the outputs
    inside the run's records. Raises NotStorable.
    """
    payload = _dumped(output)
    limit = MAX_INLINE_BYTES if total_bytes < MAX_TOTAL_BYTES else SMALL_BYTES
    if len(payload) <= limit:
        return output, None, len(payload), None
    ref = reference(payload)
    return None, ref, 0, Stored(ref["digest"], payload)


def _dumped(output: Json) -> bytes:
    nested = output
    for _ in range(SPARE_LEVELS):
        nested = [nested]
    try:
        return orjson.dumps(nested)[SPARE_LEVELS:-SPARE_LEVELS]
    except TypeError as error:
        raise NotStorable(f"the output cannot be stored as JSON: {error}") from None


def all_loaded(
    outputs: Sequence[tuple[Json, JsonObject | None]], values: Mapping[str, Json]
) -> list[Json]:
    """Return each output, as `loaded` does. Raises ValuesNeeded with all that are missing."""
    missing = {ref["digest"] for _, ref in outputs if ref is not None} - values.keys()
    if missing:
        raise ValuesNeeded(missing)
    return [loaded(output, ref, values) for output, ref in outputs]


def loaded(output: Json, ref: JsonObject | None, values: Mapping[str, Json]) -> Json:
    """Return `output`, or the stored value to which `ref` refers. Raises ValuesNeeded."""
    if ref is None:
        return output
    if ref["digest"] not in values:
        raise ValuesNeeded([ref["digest"]])
    return values[ref["digest"]]
