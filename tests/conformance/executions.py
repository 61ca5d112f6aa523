"""The table of executions-sse.md: the trigger, the event stream and the cancel request."""

from __future__ import annotations

from conformance.rows import Document, example, holds

_REAL_DISPATCH = "conformance/real_path::a_dispatch_as_the_document_writes_it_reaches_the_client"
_REAL_SOURCES = (
    "conformance/real_path::"
    "the_source_of_a_recorded_run_is_null_at_its_start_and_where_it_is_cancelled"
)
_FRAMES = "edge/executions::every_frame_is_an_event_line_one_data_line_and_a_blank_one"
_SIX_KEYS = "edge/executions::every_envelope_has_the_six_keys_and_documented_data_alone"
_NUMBERS = "edge/executions::run_id_timestamp_and_sequence_are_as_documented"
_DATA = "dialects/executions_encode::a_documented_action_has_exactly_the_documented_data"
_NO_SOURCE = "dialects/executions_encode::started_and_cancelled_have_no_source"
_EVENT = "conformance/examples::an_event_of_the_executions_document_comes_out_as_it_stands_there"
_LAST = "edge/executions::the_one_terminal_frame_is_the_last_and_the_connection_closes"
_FIRST = "edge/executions::the_first_frame_is_the_documents_example"
_STREAM = "events/envelope::the_documents_example_comes_out_byte_for_byte"
_REAL = "e2e/real_servers::the_executions_contract_from_a_real_agent"
_REAL_TOOL = "e2e/real_servers::a_tool_is_called_once_and_its_result_is_a_value"
# The demo answers the document's request with the document's own events.
_DEMO = "cli/up::the_demo_answers_in_every_contract"
_TRIGGER = "edge/executions::the_documents_own_request_streams_whatever_it_accepts"
_CANCELLED = "edge/executions::a_cancel_answers_success_once_the_run_is_cancelled"
_TOO_LATE = "edge/executions::the_cancel_of_a_finished_run_is_the_documents_failure"

DOCUMENT = Document(
    name="executions-sse.md",
    prefix="EX",
    about="`POST /api/service/v1/executions/trigger` and `…/cancel`",
    rows=(
        holds("EX1", "POST …/trigger exists and its response is an SSE stream", _TRIGGER, _REAL),
        holds(
            "EX2",
            "The documented request has `Accept: text/event-stream`",
            _TRIGGER,
            note="A request with any other Accept header, or with none, gets the stream too.",
        ),
        holds(
            "EX3",
            "The request body is application/json",
            "edge/executions::another_media_type_is_415_and_broken_json_422_in_the_contracts_shape",
            "edge/executions::a_body_that_does_not_say_it_is_json_is_415",
            note="Another media type gets a 415, and invalid JSON gets a 422, both in the form "
            "`{code, message, data: null}`.",
        ),
        holds(
            "EX4",
            "topologyId is a number",
            "edge/executions::a_topology_id_that_is_no_integer_is_422_and_named",
            note="It must be a JSON integer; any other value gets a 422.",
        ),
        holds(
            "EX5",
            "A request with an unknown topologyId is refused",
            "edge/executions::an_unknown_topology_is_404",
            note="The response is a 404 with code NOT_FOUND.",
        ),
        holds(
            "EX6",
            "userMessage is a string",
            "edge/executions::a_user_message_that_is_empty_or_no_text_is_422_and_named",
            "edge/executions::any_other_text_passes_unchanged",
            note="A message that is empty or only white space gets a 422.",
        ),
        holds(
            "EX7",
            "A frame is `event: category.action`, `data: JSON` on one line, and a blank line",
            _FRAMES,
            note="The frame also has an `id:` line, with which a client can reconnect.",
        ),
        holds("EX8", "`event:` equals event.category, a dot and event.action", _FRAMES),
        holds("EX9", "The envelope has exactly the six documented keys", _SIX_KEYS, _REAL),
        holds("EX10", "run_id is a UUID and is the same in all frames of a run", _NUMBERS),
        holds(
            "EX11",
            "timestamp is RFC 3339 in UTC with Z",
            _NUMBERS,
            "events/envelope::time_is_written_in_utc_with_milliseconds",
            "normalizer/fold::times_never_run_backwards",
            note="It is the time at which the connector received the event, and stays the same "
            "when the run is folded again.",
        ),
        holds(
            "EX12",
            "sequence is an integer that starts at 1 and strictly increases",
            _NUMBERS,
            "e2e/real_servers::text_from_agno",
            note="It has no gaps: the stream also has the actions that the document does not name.",
        ),
        holds(
            "EX13",
            "source is null or has exactly its four keys",
            _SIX_KEYS,
            "dialects/executions_encode::a_source_has_exactly_its_four_keys",
        ),
        holds(
            "EX14",
            "source is null on lifecycle.started and on lifecycle.cancelled",
            _REAL_SOURCES,
            _NO_SOURCE,
        ),
        holds("EX15", "event is {category, action}", _FRAMES),
        holds(
            "EX16",
            "lifecycle.started comes first, with sequence 1 and data {}",
            "edge/executions::the_first_frame_is_the_documents_example",
            "connector/frames::the_run_has_started_before_the_upstream_answers",
        ),
        holds(
            "EX17",
            "lifecycle.completed has data {summary} and the top agent as its source",
            _DATA,
            _REAL,
            "dialects/agno_recordings::a_recorded_stream_gives_its_golden_drafts",
            note="summary is the run's final text.",
        ),
        holds("EX18", "lifecycle.failed has data {error}", _DATA, _LAST),
        holds("EX19", "lifecycle.cancelled has data {} and no source", _DATA, _NO_SOURCE, _LAST),
        holds(
            "EX20",
            "llm.stream has data {content}; the contents join to the answer",
            _DATA,
            "edge/executions::the_pieces_of_text_join_to_the_answer",
            "e2e/real_servers::text_from_agno",
        ),
        holds(
            "EX21",
            "llm.reasoning has data {thought}",
            _REAL_SOURCES,
            _DATA,
            "dialects/adk_decode::thoughts_are_streamed_once_and_end_before_the_answer",
            "dialects/agno_decode::of_the_cumulative_text_of_a_step_only_the_new_part_is_emitted",
            note="thought is a delta. The last one of a reasoning message may be empty.",
        ),
        holds(
            "EX22",
            "llm.tool_call has data {tool, args} and comes once per call",
            _DATA,
            _REAL,
            _REAL_TOOL,
        ),
        holds(
            "EX23",
            "llm.tool_result has data {tool, result} and comes once per call; result is any "
            "JSON value",
            _DATA,
            _REAL_TOOL,
            "conformance/real_path::a_recorded_call_that_was_refused_or_failed_says_so_in_its_result",
            "dialects/agno_values::a_result_is_json_then_a_literal_then_text",
            "dialects/adk_decode::the_interim_response_of_a_confirmation_is_no_result",
            note="The result of a call that failed or was refused is `{outcome, error, result}`.",
        ),
        holds(
            "EX24",
            "dispatch.team has data {team_name, task}",
            _DEMO,
            _REAL_DISPATCH,
            _DATA,
            "dialects/agno_decode::a_team_that_is_given_work_is_announced_by_a_custom_event_of_that_name",
            "dialects/agui_decode::a_custom_event_named_like_ours_is_ours_and_any_other_is_kept",
            note="Steps of Penstock's workflows dispatch teams. No agent server has such an event; "
            "an agent can send it as a custom event named `dispatch.team`.",
        ),
        holds(
            "EX25",
            "dispatch.worker has data {worker_name, task}",
            _DEMO,
            _DATA,
            "dialects/agno_decode::a_members_task_is_what_the_team_told_it",
            "e2e/real_servers::a_team_tells_who_worked_for_whom",
        ),
        holds(
            "EX26",
            "system.warning has data {message}",
            _REAL_SOURCES,
            _REAL_DISPATCH,
            _DATA,
            "dialects/adk_decode::a_model_that_stopped_early_is_a_warning_and_the_run_completes",
        ),
        holds(
            "EX27",
            "system.error has data {message, code} and does not end the stream",
            _DATA,
            "edge/executions::an_error_within_the_run_does_not_end_the_stream",
            "normalizer/fold::an_event_that_is_no_json_is_replaced_by_an_error",
        ),
        holds(
            "EX28",
            "source.team_name is set on a worker of a team",
            "dialects/agno_decode::the_members_source_names_its_team",
            "dialects/executions_encode::a_source_has_exactly_its_four_keys",
            "e2e/real_servers::a_team_tells_who_worked_for_whom",
        ),
        holds(
            "EX29",
            "One terminal lifecycle event is the last frame, and then the connection closes",
            _LAST,
            _REAL,
            "e2e/matrix::a_run_is_whole_in_order_and_ends_once_in_every_dialect",
            note="Later events of automations are in the session's stream.",
        ),
        holds(
            "EX30",
            "A pause is visible on this endpoint",
            "edge/executions::a_pause_is_seen_and_the_stream_stays_open_to_the_end",
            note="The stream has approval.requested and lifecycle.paused, and stays open.",
        ),
        holds(
            "EX31",
            "A client that disconnects during the stream does not cancel the run",
            "edge/executions::a_client_that_leaves_mid_stream_leaves_the_run_as_it_is",
        ),
        holds(
            "EX32",
            "An idle stream is kept alive",
            "edge/executions::an_idle_execution_gets_keep_alive_comments",
            note="It gets `: keep-alive` comments.",
        ),
        holds("EX33", "POST …/cancel takes the body {runId}", _CANCELLED),
        holds(
            "EX34",
            "A successful cancel has code SUCCESS and the message `Execution cancelled`",
            _CANCELLED,
        ),
        holds(
            "EX35",
            "The data of a successful cancel is {type, runId, content, timestamp}",
            _CANCELLED,
            "edge/runs::a_run_that_nobody_cancels_is_ended_by_the_edge",
            note="The response is sent when the run is cancelled; after 10 s the edge itself ends "
            "the run.",
        ),
        holds(
            "EX36",
            "The cancel of a finished run gets the documented CANCEL_FAILED",
            _TOO_LATE,
            note="The status is 409.",
        ),
        holds(
            "EX37",
            "The cancel of an unknown run is refused",
            "edge/executions::the_cancel_of_an_unknown_run_is_404",
            note="The response is a 404 with CANCEL_FAILED and `Execution not found`.",
        ),
        holds(
            "EX38",
            "A cancel with an invalid body is refused",
            "edge/executions::a_cancel_with_a_bad_body_is_422",
            "edge/executions::a_run_is_found_by_its_id_in_capitals",
            note="The response is a 422 with INVALID_REQUEST in the contract's form.",
        ),
        holds(
            "EX39",
            "Of two cancels at once, one gets SUCCESS and one CANCEL_FAILED, and there is one"
            " lifecycle.cancelled",
            "edge/executions::of_two_cancels_at_once_one_succeeds",
            "connector/cancel::two_cancels_are_one",
        ),
        holds(
            "EX40",
            "A paused run can be cancelled: its approvals are withdrawn, and its tool never runs",
            "edge/executions::a_paused_run_can_be_cancelled",
            "e2e/real_servers::a_cancel_of_a_paused_run_withdraws_its_approval",
        ),
        holds(
            "EX41",
            "A topology that names a workflow runs the workflow",
            _DEMO,
            "edge/executions::a_topology_may_be_a_workflow",
            note="A workflow of Penstock or of Agno; the stream also has the events of the runs of "
            "its steps.",
        ),
        holds(
            "EX42",
            "A request with a wrong method is refused",
            "edge/executions::a_wrong_method_is_405_with_allow",
            note="The response is a 405 with Allow, in the contract's form.",
        ),
    ),
    examples=(
        example("Request", _TRIGGER, _DEMO),
        example("lifecycle.started", _EVENT, _FIRST, _DEMO),
        example("lifecycle.completed", _EVENT, _DEMO),
        example("lifecycle.failed", _EVENT),
        example("lifecycle.cancelled", _EVENT),
        example("llm.stream", _EVENT, _STREAM),
        example("llm.reasoning", _EVENT),
        example("llm.tool_call", _EVENT),
        example("llm.tool_result", _EVENT),
        example("dispatch.team", _EVENT, _DEMO),
        example("dispatch.worker", _EVENT, _DEMO),
        example("system.warning", _EVENT),
        example("system.error", _EVENT),
        example("Cancel: request", _CANCELLED),
        example("Cancel: response (success)", _CANCELLED),
        example("Cancel: response (failure)", _TOO_LATE),
    ),
)
