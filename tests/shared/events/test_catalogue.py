"""The event types and their fields do not change unnoticed, and the catalogue describes them."""

from __future__ import annotations

from types import ModuleType

import pytest
from pydantic import Field

from penstock.events import CATALOGUE, TERMINAL, is_epilogue
from penstock.events.base import Data, Model
from penstock.events.catalogue import CATEGORIES, events_in

# Every type with its fields as they are in a message; `?` marks a field that may be absent.
VOCABULARY = {
    "lifecycle.started": "agent user_id message? workflow? idempotency_key?",
    "lifecycle.paused": "reason approval_id expires_at? deciders_required? policy?",
    "lifecycle.resumed": "approval_id? upstream_run_id?",
    "lifecycle.retrying": "retry_count max_retries reason step?",
    "lifecycle.completed": "summary content? value? content_type? usage? metrics? session_state?",
    "lifecycle.failed": "error code error_type? step? status_code? detail? retryable?",
    "lifecycle.cancelled": "reason by? step? confirmed",
    "llm.message_started": "message_id role name?",
    "llm.stream": "content message_id",
    "llm.message_completed": "message_id role content value? content_type? citations? parts?"
    " status? result_type? key_points? suggested_actions? ui_schema? error?",
    "llm.reasoning": "thought reasoning_id title? final? debug?",
    "llm.tool_args": "tool_call_id tool delta? path? value?",
    "llm.tool_call": "tool args tool_call_id message_id? pending? args_text? execution?",
    "llm.tool_progress": "tool_call_id status? delta? tool? args?",
    "llm.tool_result": "tool result tool_call_id outcome error? content? duration_s? message_id?",
    "dispatch.team": "team_name task subrun_id? parent_subrun_id?",
    "dispatch.worker": "worker_name task subrun_id parent_subrun_id?",
    "dispatch.transfer": "to from reason?",
    "dispatch.finished": "subrun_id status result? error?",
    "workflow.started": "workflow run_id version? input?",
    "workflow.step_started": "run_id step_id description kind? iteration? branch? parent_step_id?"
    " child_run_id? attempt? role? team_name?",
    "workflow.step_progress": "step_id message?",
    "workflow.step_completed": "run_id step_id output child_run_id?",
    "workflow.step_failed": "run_id step_id error child_run_id?",
    "workflow.transition": "run_id from_step to_step reason",
    "workflow.completed": "run_id result",
    "workflow.failed": "run_id error",
    "retrieval.started": "retrieval_id query",
    "retrieval.result": "retrieval_id? documents",
    "approval.requested": "approval_id digest expires_at? policy? deciders_required items",
    "approval.decided": "approval_id outcome by on_behalf_of? deciders? policy? automatic note?"
    " items",
    "approval.escalated": "approval_id step to expires_at?",
    "approval.expired": "approval_id reason",
    "approval.withdrawn": "approval_id reason",
    "automation.triggered": "depth? automation trigger delivery_id workflow",
    "automation.completed": "depth? automation workflow delivery_id status_code? result attempts"
    " duration_s started_run_id? error?",
    "automation.failed": "depth? automation workflow delivery_id status_code? result attempts"
    " duration_s started_run_id? error?",
    "state.snapshot": "snapshot",
    "state.delta": "delta",
    "state.messages": "messages",
    "artifact.updated": "name version? media_type? size_bytes? digest? uri?",
    "custom.event": "protocol name value",
    "system.warning": "message code detail?",
    "system.error": "message code detail?",
    "system.metrics": "cpu? memory_used? disk_free? containers_running?",
}


def fields(model: type[Model]) -> str:
    return " ".join(
        (field.alias or name) + ("" if field.is_required() else "?")
        for name, field in model.model_fields.items()
    )


def test_the_vocabulary_is_this_one() -> None:
    """Pin every type and field that Penstock publishes, so that a change is a decision.

    Before a change, think of the readers. Subscribers have these names in their code and in their
    NATS subscriptions, and events of the old form stay in the streams until they age out. So a
    field or type may be added (optional, with a description, and every encoder must have a place
    for it or say that it has none). No field or type may be renamed, removed, made required or
    given another meaning. An addition goes into the changelog, the generated schemas and each
    dialect's documentation in the same change.
    """
    assert {name: fields(row.model) for name, row in CATALOGUE.items()} == VOCABULARY


def test_a_type_lives_in_the_module_of_its_category() -> None:
    for category, module in CATEGORIES.items():
        assert events_in(module)
        for row in events_in(module):
            assert row.name.split(".")[0] == category


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_type_and_every_field_is_described(name: str) -> None:
    row = CATALOGUE[name]
    assert row.name == row.model.TYPE == name
    assert row.title
    assert row.description.endswith((".", "…"))
    for field_name, field in row.model.model_fields.items():
        assert field.description, f"{name}: {field_name}"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_type_has_a_json_schema_under_its_wire_names(name: str) -> None:
    row = CATALOGUE[name]
    schema = row.model.model_json_schema()
    assert schema["title"] == row.title
    assert list(schema["properties"]) == [word.rstrip("?") for word in VOCABULARY[name].split()]


def test_three_types_end_a_run() -> None:
    assert {name for name, row in CATALOGUE.items() if row.terminal} == TERMINAL
    assert {"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"} == TERMINAL


def test_only_automations_and_a_withdrawn_approval_may_follow_the_end() -> None:
    assert {name for name in CATALOGUE if is_epilogue(name)} == {
        "automation.triggered",
        "automation.completed",
        "automation.failed",
        "approval.withdrawn",
    }


def test_a_model_refuses_to_guess() -> None:
    class Sample(Model):
        count: int = Field(description="A number.")

    with pytest.raises(ValueError, match="valid integer"):
        Sample.model_validate({"count": "1"})


def test_a_model_without_a_note_is_refused_with_what_to_do() -> None:
    module = ModuleType("billing")
    namespace = {"__module__": "billing", "TYPE": "billing.charged", "__doc__": "It was charged."}
    module.Charged = type("Charged", (Data,), namespace)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"billing\.charged has no NOTE: say when"):
        events_in(module)
