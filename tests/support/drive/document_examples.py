"""Finds the examples of the contracts' documents among the frames of a real run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]
_FOLDER = Path(__file__).parents[2] / "conformance" / "documents"
# The fields of an example that a real run fills in itself.
_OF_THE_RUN = ("run_id", "timestamp", "sequence", "event_id", "session_id")


def examples(document: str) -> Mapping[str, Json]:
    """Return the examples of a document (`executions`, `unified`), by the name of the event."""
    given: Mapping[str, Json] = orjson.loads((_FOLDER / f"{document}.json").read_bytes())
    return given


def missing(
    document: str, names: Iterable[str], frames: Sequence[Json], **given: Mapping[str, Any]
) -> list[Json]:
    """Return the examples that are not among the frames; an empty list if all are.

    A frame is an example if all their fields are equal. The ids, times and numbers of the run and
    the ids of agents may differ. `given` has the values that replace those of the example, as
    `payload={"workflow": …}` or `source={"agent_name": …}`, wherever the example has the field.
    """
    found = [_without_ids(frame) for frame in frames]
    wanted = []
    for name in names:
        example = examples(document)[name]
        if document == "unified":  # the examples are payloads
            example = {"type": name, "payload": example}
        example = _without_ids(example)
        for part, values in given.items():
            if example.get(part):
                known = example[part].keys()
                replaced = {key: value for key, value in values.items() if key in known}
                example[part] = {**example[part], **replaced}
        wanted.append(example)
    return [example for example in wanted if example not in found]


def _without_ids(frame: Json) -> Json:
    shown = {key: value for key, value in frame.items() if key not in _OF_THE_RUN}
    if shown.get("source"):
        shown["source"] = {**shown["source"], "agent_id": "…"}
    if isinstance(payload := shown.get("payload"), dict):
        shown["payload"] = {**payload, "run_id": "…"}
    return shown
