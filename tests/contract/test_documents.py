"""The published documents equal what the models give, and are valid in their own formats."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from penstock.contract import VERSION
from penstock.contract import __main__ as writing
from penstock.contract.__main__ import documents
from penstock.contract.unified import UNIFIED
from penstock.dialects.unified import CATEGORY_OF, OMITTED, UnifiedEncoder
from penstock.events import CATALOGUE, TERMINAL, Event, subject_of
from penstock.events.examples import example
from support.drive.contract import CONTRACT, schemas
from support.drive.for_each import for_each
from support.drive.repository import ROOT, toml
from support.drive.short import in_short
from support.real import node

SCHEMAS = schemas()
ASYNCAPI: dict[str, Any] = json.loads((CONTRACT / "asyncapi.json").read_text())
# conformance.md is made of the tables in tests/conformance, openapi.json of the services'
# operations. Each of them has tests of its own.
NOT_OF_THE_MODELS = {
    "README.md",
    "consuming.md",
    "conformance.md",
    "openapi.json",
    "workflow.schema.json",
}
ENCODED = ROOT / "tests/golden/encoded/unified"

# The 22 types of unified-events.md with the payload fields of its examples.
UNIFIED_FIELDS = {
    "session_started": "session_id agent metadata",
    "session_ended": "session_id reason summary",
    "agent_message_start": "agent message_id",
    "agent_message_delta": "message_id delta",
    "agent_message_end": "message_id content",
    "tool_call_started": "tool_call_id tool_name agent args",
    "tool_call_delta": "tool_call_id delta",
    "tool_call_result": "tool_call_id tool_name result",
    "workflow_started": "workflow run_id",
    "workflow_step_started": "run_id step_id description",
    "workflow_step_completed": "run_id step_id output",
    "workflow_transition": "run_id from_step to_step reason",
    "workflow_completed": "run_id result",
    "agent_thought": "agent content debug",
    "run_error": "error_type message agent step",
    "run_retry": "retry_count max_retries reason",
    "run_interrupted": "reason step",
    "retrieval_started": "query agent",
    "retrieval_result": "documents",
    "automation_triggered": "workflow trigger",
    "automation_completed": "workflow result",
    "metrics_update": "cpu memory_used disk_free containers_running",
}


def test_what_is_committed_is_what_the_models_say() -> None:
    """If this fails after a change of the models, run `make contract` and review its changes."""
    committed = {
        path.relative_to(CONTRACT).as_posix(): path.read_text()
        for path in CONTRACT.rglob("*")
        if path.is_file() and "released" not in path.relative_to(CONTRACT).parts
    }
    made = documents()
    assert committed.keys() - NOT_OF_THE_MODELS == made.keys()
    stale = [path for path, content in made.items() if committed[path] != content]
    assert stale == []


def test_the_models_need_pydantic_and_nothing_else() -> None:
    """A subscriber imports the models where nothing else of Penstock is installed."""
    script = "import sys, penstock.contract.unified; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"nats", "orjson", "httpx", "starlette"} & set(loaded)


def test_a_release_is_never_written_over(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.contract", str(tmp_path), "--release"]
    subprocess.run(command, check=True)
    kept = tmp_path / "released" / VERSION / "llm.stream.json"
    kept.write_text("as it was")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "never written over" in again.stderr
    assert kept.read_text() == "as it was"


def broken_event() -> dict[str, str]:
    raise KeyError("an event without a note")


def broken_document() -> dict[str, Any]:
    return {**documents(), "schemas/zz.json": None}  # this document cannot be written


@pytest.mark.parametrize("made", in_short([broken_event, broken_document], [broken_document]))
def test_nothing_is_replaced_before_everything_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[], dict[str, Any]]
) -> None:
    folder = tmp_path / "contract"
    monkeypatch.setattr(sys, "argv", ["contract", str(folder)])
    writing.main()
    (folder / "catalogue.md").write_text("as it was")
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert len(before) > 60
    monkeypatch.setattr(writing, "documents", made)
    with pytest.raises((KeyError, TypeError)):
        writing.main()
    assert {path: path.read_text() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["contract"], (
        "the temporary folder is gone"
    )


def test_the_schema_of_a_type_that_is_no_more_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["contract", str(tmp_path)])
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "billing.charged.json").write_text("{}")
    (tmp_path / "README.md").write_text("by hand")
    writing.main()
    assert not (tmp_path / "schemas" / "billing.charged.json").exists()
    assert (tmp_path / "schemas" / "llm.stream.json").exists()
    assert (tmp_path / "README.md").read_text() == "by hand"


def test_the_contract_has_the_version_of_the_distribution() -> None:
    version = toml("shared/pyproject.toml")["project"]["version"]
    assert version.startswith(f"{VERSION}.")
    assert ASYNCAPI["info"]["version"] == VERSION


@for_each("name", SCHEMAS)
def test_a_schema_is_valid_by_the_metaschema(name: str) -> None:
    assert SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(SCHEMAS[name])
    # AsyncAPI's schema language extends draft 7, so schemas that it refers to must be valid there.
    Draft7Validator.check_schema(SCHEMAS[name])


@for_each("name", SCHEMAS)
def test_an_example_fits_its_schema(name: str) -> None:
    samples = SCHEMAS[name].get("examples", [])
    assert samples or name.endswith("envelope")
    for sample in samples:
        Draft202012Validator(SCHEMAS[name]).validate(sample)
        envelope = "unified/envelope" if name.startswith("unified/") else "envelope"
        if name != "reference":
            Draft202012Validator(SCHEMAS[envelope]).validate(sample)


@for_each("name", CATALOGUE)
def test_the_example_of_a_type_is_an_event_that_its_model_takes(name: str) -> None:
    event = example(name)
    assert event.type == name
    assert event.data_model() is not None
    assert not set(event.data) - set(CATALOGUE[name].model.model_json_schema()["properties"])


def test_every_type_has_a_note() -> None:
    assert all(row.note.when and row.note.times for row in CATALOGUE.values())


@for_each("name", CATALOGUE)
def test_a_schema_takes_fields_that_it_does_not_know(name: str) -> None:
    sample = {**SCHEMAS[name]["examples"][0], "from_the_future": 1}
    sample["data"] = {**sample["data"], "from_the_future": {"deep": True}}
    Draft202012Validator(SCHEMAS[name]).validate(sample)


@for_each("name", CATALOGUE)
def test_a_schema_refuses_what_the_model_refuses(name: str) -> None:
    sample = SCHEMAS[name]["examples"][0]
    validator = Draft202012Validator(SCHEMAS[name])
    assert not validator.is_valid({**sample, "sequence": 0})
    assert not validator.is_valid({**sample, "event": {"category": "x", "action": "y"}})
    for field in SCHEMAS[name]["properties"]["data"].get("required", []):
        short = {key: value for key, value in sample["data"].items() if key != field}
        assert not validator.is_valid({**sample, "data": short}), field


def test_the_envelope_takes_an_event_of_a_type_that_does_not_exist_yet() -> None:
    sample = {
        **SCHEMAS["llm.stream"]["examples"][0],
        "event": {"category": "billing", "action": "charged"},
        "data": {"anything": 1},
    }
    Draft202012Validator(SCHEMAS["envelope"]).validate(sample)


def test_arguments_are_streamed_in_one_of_two_forms() -> None:
    validator = Draft202012Validator(SCHEMAS["llm.tool_args"])
    sample = SCHEMAS["llm.tool_args"]["examples"][0]
    call = {"tool_call_id": "c", "tool": "t"}
    forms = {
        '{"delta": "x"}': True,
        '{"path": "$.a", "value": null}': True,
        '{"path": "$.a"}': False,
        "{}": False,
    }
    found = {
        form: validator.is_valid({**sample, "data": {**call, **json.loads(form)}}) for form in forms
    }
    assert found == forms


@for_each("name", UNIFIED_FIELDS)
def test_a_unified_type_has_the_fields_of_its_document_and_the_run(name: str) -> None:
    payload = SCHEMAS[f"unified/{name}"]["properties"]["payload"]
    beyond = {"run_id"} | ({"is_error"} if name == "tool_call_result" else set())
    assert set(payload["properties"]) == set(UNIFIED_FIELDS[name].split()) | beyond
    assert set(payload["required"]) == set(payload["properties"])


def test_there_are_22_unified_types_made_from_types_that_there_are() -> None:
    assert list(UNIFIED) == list(UNIFIED_FIELDS)
    sources = {source for row in UNIFIED.values() for source in row.model.SOURCES}
    assert sources | set(OMITTED) == set(CATALOGUE)
    assert not sources & set(OMITTED)
    assert {name: row.category for name, row in UNIFIED.items()} == CATEGORY_OF


@for_each("name", CATALOGUE)
def test_what_the_encoder_makes_of_a_type_fits_the_unified_schemas(name: str) -> None:
    encoder = UnifiedEncoder()
    encoder.feed(SCHEMAS["lifecycle.started"]["examples"][0])
    frames = encoder.feed(SCHEMAS[name]["examples"][0])
    # the tool still runs and has no output yet
    assert frames or name in OMITTED or name == "llm.tool_progress"
    for frame in frames:
        body = json.loads(frame.data)
        Draft202012Validator(SCHEMAS[f"unified/{body['type']}"]).validate(body)
        # A piece of a message without a start event also gives a frame for the start.
        assert name in UNIFIED[body["type"]].model.SOURCES or name.startswith("llm.")


@pytest.mark.parametrize("golden", sorted(ENCODED.glob("*.jsonl")), ids=lambda path: str(path.stem))
def test_what_was_made_of_a_recording_fits_the_unified_schemas(golden: Path) -> None:
    for line in golden.read_text().strip().split("\n"):
        body = json.loads(line)
        Draft202012Validator(SCHEMAS[f"unified/{body['type']}"]).validate(body)


@pytest.mark.parametrize("upstream", ["adk", "agno"])
def test_every_event_of_the_recordings_fits_its_schema(upstream: str) -> None:
    validators = {name: Draft202012Validator(SCHEMAS[name]) for name in CATALOGUE}
    seen = set()
    for golden in sorted((ROOT / "tests/golden" / upstream).rglob("*.golden.jsonl")):
        # splitlines would be wrong: text may contain a Unicode line separator
        for row in map(json.loads, golden.read_text().strip().split("\n")):
            if "type" in row:  # a pause has no type
                name = row["type"]
                sample = {**SCHEMAS[name]["examples"][0], "data": row["data"]}
                validators[name].validate(sample)
                seen.add(name)
    assert len(seen) > 10


def test_the_asyncapi_document_is_valid_by_the_official_schema() -> None:
    # This package is from the AsyncAPI initiative. Its draft-7 `$schema` lacks the standard's `#`.
    specs = node.packages("contract") / "@asyncapi/specs/schemas/3.0.0-without-$id.json"
    Draft7Validator(json.loads(specs.read_text())).validate(ASYNCAPI)


def test_a_broken_asyncapi_document_is_not_valid() -> None:
    specs = node.packages("contract") / "@asyncapi/specs/schemas/3.0.0-without-$id.json"
    validator = Draft7Validator(json.loads(specs.read_text()))
    channels = {"llm.stream": {"adress": "llm.stream.{run_id}"}}
    assert not validator.is_valid({**ASYNCAPI, "channels": channels})


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for value in part.values() for found in references(value)]
    if isinstance(part, list):
        return [found for value in part for found in references(value)]
    return []


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    for reference in references(ASYNCAPI):
        file, _, pointer = reference.partition("#")
        if file:
            assert (CONTRACT / file).exists(), reference
        target = json.loads((CONTRACT / file).read_text()) if file else ASYNCAPI
        for token in filter(None, pointer.split("/")):
            target = target[token]


def test_every_type_is_a_channel_that_penstock_sends_on() -> None:
    assert {channel["address"] for channel in ASYNCAPI["channels"].values()} == {
        f"{name}.{{run_id}}" for name in CATALOGUE
    }
    for operation in ASYNCAPI["operations"].values():
        assert operation["action"] == "send"
    for channel in ASYNCAPI["channels"].values():
        assert set(re.findall(r"{(\w+)}", channel["address"])) == set(channel["parameters"])


@for_each("name", CATALOGUE)
def test_an_example_has_the_headers_that_are_promised(name: str) -> None:
    [sample] = ASYNCAPI["components"]["messages"][name]["examples"]
    schema = ASYNCAPI["components"]["messageTraits"]["event"]["headers"]
    Draft7Validator(schema).validate(sample["headers"])
    event = Event.model_validate(sample["payload"])
    assert sample["headers"]["ce-id"] == f"{event.run_id}.{event.sequence}"
    assert sample["headers"]["ce-type"] == name
    assert sample["summary"].endswith(subject_of(event))


def test_the_catalogue_tells_of_every_type_and_links_to_what_there_is() -> None:
    page = (CONTRACT / "catalogue.md").read_text()
    headings = re.findall(r"^### ([\w.]+)$", page, re.MULTILINE)
    assert headings == [*CATALOGUE, *UNIFIED]
    ends = re.findall(r"^### (\S+)\n(?:(?!^###).)*?\*\*Ends the run", page, re.M | re.S)
    assert set(ends) == TERMINAL
    for document in ("README.md", "catalogue.md", "consuming.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", (CONTRACT / document).read_text()):
            assert (CONTRACT / link).exists(), link
