"""The catalogue for people: every event with its meaning, guarantees, fields and an example."""

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

Made by `make contract` from the models in `penstock.events`: do not edit. How to read events from
the bus is in [consuming.md](consuming.md). The same stands as AsyncAPI 3 in
[asyncapi.json](asyncapi.json), as TypeScript in [penstock.d.ts](penstock.d.ts), and as Pydantic
models in the package `penstock`.

## What holds for every event

- **Subject.** `category.action.run_id` in the stream `EVENTS`, and `live.category.action.run_id`
  at the moment that it is stored. `llm.tool_call.*` is every tool call, `*.*.<run_id>` one run.
- **Order.** `sequence` is 1, 2, 3 … within a run, without gaps, and the stream has the events of a
  run in that order. Between runs there is no order but the stream's.
- **Duplicates.** The stream has each event once. A consumer may get one again (a crash before its
  acknowledgement): `ce-id`, which is `<run_id>.<sequence>`, is then the same, and so is the body.
- **End.** A run has one terminal event: `lifecycle.completed`, `lifecycle.failed` or
  `lifecycle.cancelled`. After it may come only `automation.*` and `approval.withdrawn`.
- **Made again.** What was produced a second time after a failure has `attempt` above 1.
- **Compatibility.** Within a major version fields and types are only added, and every new field is
  optional. A reader must accept unknown actions and unknown fields; words in a text field (an
  `outcome`, a `code`) may become more.
- **Large events.** In place of a body over 512 KiB stands `{"penstock_object": "<name>"}`
  ([schema](schemas/reference.json)); the headers and the subject stay the event's own.
"""


def page() -> str:
    """The whole of `catalogue.md`."""
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
            "### What has no unified type\n",
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
