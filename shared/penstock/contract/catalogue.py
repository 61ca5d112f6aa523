"""The catalogue for people: the meaning, guarantees, fields and an example of every event."""

from __future__ import annotations

from typing import Any

from penstock.contract.schemas import Schema, envelope, of_model, text, unified_example
from penstock.contract.unified import UNIFIED, UnifiedType
from penstock.dialects.unified import OMITTED
from penstock.events import CATALOGUE, EventType, is_epilogue
from penstock.events.catalogue import CATEGORIES
from penstock.events.examples import example

_HEAD = """\
# Catalogue of events

`make contract` makes this page from the models in `penstock.events`: do not edit it.
[consuming.md](consuming.md) says how to read events from the bus. The same contract is published as
AsyncAPI 3 in [asyncapi.json](asyncapi.json), as TypeScript in [penstock.d.ts](penstock.d.ts), and
as Pydantic models in the package `penstock`.

## What holds for every event

- **Subject.** `category.action.run_id` in the stream `EVENTS`, and `live.category.action.run_id`
  when the event is stored. `llm.tool_call.*` is every tool call, `*.*.<run_id>` one run.
- **Order.** `sequence` is 1, 2, 3 … within a run, without gaps, and the stream has the events of a
  run in that order. Events of different runs have only the order of the stream.
- **Duplicates.** The stream has each event once. A consumer may get an event again, for example
  after a crash before its acknowledgement. `ce-id`, which is `<run_id>.<sequence>`, and the body
  are then the same.
- **End.** A run has one terminal event: `lifecycle.completed`, `lifecycle.failed` or
  `lifecycle.cancelled`. Only `automation.*` and `approval.withdrawn` may follow.
- **Attempts.** An event that was produced again after a failure has `attempt` above 1.
- **Compatibility.** Within a major version fields and types are only added, and every new field is
  optional. A reader must accept unknown actions and unknown fields. Text fields such as `outcome`
  and `code` may get further values.
- **Large events.** In place of a body over 512 KiB the message is `{"penstock_object": "<name>"}`
  ([schema](schemas/reference.json)), with the headers and the subject of the event.
- **Sealed events.** Where the operator seals content, an event has `sealed: 1`, and its `data` are
  ciphertext ([consuming.md](consuming.md#sealed-content)).
- **Masked events.** Where redactions mask content for some callers, an event has `masked: 1`, and
  `clear` beside `data`. In `data`, tokens such as `[EMAIL_1]` stand for what was found; `clear` has
  the data as they came. What a reader passes on, it takes from `data`.
"""


def page() -> str:
    """Return the content of `catalogue.md`."""
    categories = [
        _category(category, module.__doc__ or "") for category, module in CATEGORIES.items()
    ]
    return "\n".join([_HEAD, _envelope(), *categories, _unified()])


def _envelope() -> str:
    schema = envelope()
    return "\n".join(
        ["## The envelope\n", "[Schema](schemas/envelope.json)\n", _table(schema), ""]
        + [
            f"`{name}`: {part['description']}\n\n{_table(part)}\n"
            for name, part in schema["$defs"].items()
        ]
    )


def _category(category: str, doc: str) -> str:
    about = doc.split("\n", 1)[0].split(": ", 1)[-1]
    rows = [row for name, row in CATALOGUE.items() if name.split(".")[0] == category]
    return "\n".join([f"## {category}\n", f"{about[0].upper()}{about[1:]}\n", *map(_event, rows)])


def _event(row: EventType) -> str:
    note = row.note
    ends = "**Ends the run.** " if row.terminal else ""
    after = "May follow the run's end. " if is_epilogue(row.name) else ""
    schema = of_model(row.model)
    parts = [
        f"`{name}`: {part['description']}\n\n{_table(part)}\n"
        for name, part in schema.get("$defs", {}).items()
        if name != "Subrun"
    ]
    return "\n".join(
        [
            f"### {row.name}\n",
            f"{row.title}. {row.description}\n",
            f"- When: {note.when}",
            f"- How often: {note.times}. {ends}{after}".rstrip(),
            f"- Subject: `{row.name}.<run_id>` · [schema](schemas/{row.name}.json)\n",
            _table(schema),
            "",
            *parts,
            _example(example(row.name).model_dump(mode="json", exclude_unset=True)),
        ]
    )


def _unified() -> str:
    omitted = (f"| `{name}` | {instead} |" for name, instead in OMITTED.items())
    return "\n".join(
        [
            "## Unified events\n",
            "The 22 types of the unified schema, over SSE and WebSocket; not on the bus. Each is",
            "made from canonical events; further payload fields may stand beside these.\n",
            *map(_unified_event, UNIFIED.values()),
            "### Canonical types without a unified type\n",
            "| canonical type | where it shows all the same |",
            "|---|---|",
            *omitted,
            "",
        ]
    )


def _unified_event(row: UnifiedType) -> str:
    sources = ", ".join(f"`{source}`" for source in row.model.SOURCES)
    return "\n".join(
        [
            f"### {row.name}\n",
            f"{row.description}\n",
            f"- Category: `{row.category}`",
            f"- From: {sources} · [schema](schemas/unified/{row.name}.json)\n",
            _table(of_model(row.model)),
            "",
            _example(unified_example(row)),
        ]
    )


def _table(schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        f"| `{name}` | {_type(part)}{'' if name in required else ', optional'} "
        f"| {part.get('description', '')} |"
        for name, part in schema["properties"].items()
    ]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    return str(kind) if kind else "any JSON"


def _example(body: dict[str, Any]) -> str:
    return f"```json\n{text(body)}```\n"
