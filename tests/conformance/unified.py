"""The table of unified-events.md: 22 types under one root, over SSE and WebSocket."""

from __future__ import annotations

from conformance.rows import Document, elsewhere, example, holds, otherwise

_REAL_BREAKS = "conformance/real_path::a_recorded_run_that_breaks_off_is_told_why"
_REAL_LONG = "conformance/real_path::a_recorded_tool_that_takes_long_tells_its_progress"
_REAL_MOVES = (
    "dialects/unified_encode::"
    "a_recorded_workflow_is_one_run_whose_transitions_lead_from_step_to_step"
)
_REAL_PAUSES = "conformance/real_path::a_recorded_pause_interrupts_for_an_approval"
_REAL_SAID = (
    "conformance/real_path::"
    "a_payload_of_the_document_that_an_agent_says_reaches_the_client_as_it_was"
)
_REAL_STEP_FAILS = "conformance/real_path::a_recorded_step_that_failed_is_a_run_error_that_names_it"
_REAL_RULES = "e2e/automated_runs::rules_approve_and_start_a_run_and_the_unified_stream_says_so"
_REAL_THOUGHTS = "conformance/real_path::recorded_thoughts_are_told_with_their_agent"
_EXAMPLE = "dialects/unified_encode::each_example_of_the_document_is_made"
_FRAMES = "dialects/unified_encode::a_recorded_run_is_of_the_document_in_every_frame"
_COMPLETE = "dialects/unified_encode::a_recorded_run_is_complete"
_MESSAGES = "dialects/unified_encode::the_messages_of_a_recorded_run_are_well_formed"
_TYPES = "dialects/unified_encode::there_are_22_types_in_nine_categories"
_TAKEN = "conformance/examples::a_payload_of_the_unified_document_is_an_event_of_ours_and_back"
_CUSTOM = "dialects/universal::every_unified_name_has_its_event"
_ROOT = "edge/socket::unified_messages_have_exactly_the_documented_root"
_SSE = "edge/session_events::a_session_is_its_runs_in_the_order_of_the_stream"
_BY_NAME = "e2e/dialects::an_idle_session_shows_the_runs_of_a_workflow_that_was_started_by_its_name"
_CUT = "edge/session_events::a_client_that_was_cut_at_any_frame_gets_exactly_the_rest"
_CHOSEN = "edge/session_events::a_category_and_a_type_choose_unified_events_with_the_same_cursors"
_SAME = "edge/socket::messages_are_the_data_of_the_sse_frames"
_MATRIX = "e2e/matrix::a_run_is_whole_in_order_and_ends_once_in_every_dialect"
_WORKFLOW = "e2e/real_servers::a_workflow_tells_its_steps"
# The demo's code review has the payloads of the document's examples.
_OWN = "cli/up::the_demo_answers_in_every_contract"
_GRAPH = "dialects/adk_decode::a_graph_gives_steps_a_transition_and_its_result"
_GOLDEN = "dialects/unified_encode::a_recorded_run_gives_its_golden_frames"
_CANCELLED = "dialects/unified_encode::a_cancelled_run_is_interrupted_and_then_ended"
_FAILED = "dialects/unified_encode::a_failed_run_has_its_error_and_then_its_end"
_OPENED = "dialects/unified_encode::an_open_message_is_ended_with_what_was_emitted_before_the_error"

_HEADINGS = (
    "session_started",
    "session_ended",
    "agent_message_start",
    "agent_message_delta",
    "agent_message_end",
    "tool_call_started",
    "tool_call_delta",
    "tool_call_result",
    "workflow_started",
    "workflow_step_started",
    "workflow_step_completed",
    "workflow_transition",
    "workflow_completed",
    "agent_thought",
    "run_error",
    "run_retry",
    "run_interrupted",
    "retrieval_started",
    "retrieval_result",
    "automation_triggered",
    "automation_completed",
    "metrics_update",
)

DOCUMENT = Document(
    name="unified-events.md",
    prefix="UN",
    about="`GET /v1/sessions/{session_id}/events` and `…/events/ws` with the dialect `unified`",
    rows=(
        holds(
            "UN1",
            "The root has exactly the fields event_id, session_id, timestamp, type and payload",
            _ROOT,
            _FRAMES,
            note="`run_id` in each payload names the run.",
        ),
        holds(
            "UN2",
            "event_id is a unique UUID and stays the same in a replay",
            _FRAMES,
            "dialects/unified_encode::a_reconnecting_client_gets_exactly_the_rest",
            "dialects/unified_encode::the_messages_of_two_runs_of_a_session_have_different_ids",
            _CUT,
            note="It is a UUID of version 5, made from the run, the sequence and the frame's "
            "index.",
        ),
        holds(
            "UN3",
            "session_id is a string and equals the id in the path",
            "edge/session_events::every_unified_event_has_the_session_of_its_path",
            "edge/session_events::a_session_whose_id_has_slashes_is_found_by_every_path",
        ),
        holds("UN4", "timestamp is RFC 3339 with Z", _FRAMES),
        holds("UN5", "type is one of 22 names in snake_case", _TYPES, _FRAMES),
        holds("UN6", "payload is an object", _FRAMES),
        holds(
            "UN7",
            "session_started is {session_id, agent, metadata {user_id, workflow}}",
            _EXAMPLE,
            _COMPLETE,
            note="It comes at the start of each run of the session.",
        ),
        holds(
            "UN8",
            "session_ended is {session_id, reason, summary}",
            _EXAMPLE,
            _COMPLETE,
            note="It comes at the end of each run of the session.",
        ),
        holds(
            "UN9",
            "session_ended has further reasons",
            _REAL_BREAKS,
            _FAILED,
            _CANCELLED,
            note="They are `failed` and `cancelled`.",
        ),
        holds("UN10", "agent_message_start is {agent, message_id}", _EXAMPLE, _MESSAGES, _TAKEN),
        holds("UN11", "agent_message_delta is {message_id, delta}", _EXAMPLE, _MESSAGES),
        holds("UN12", "agent_message_end is {message_id, content}", _EXAMPLE, _MESSAGES),
        holds(
            "UN13",
            "message_id is unique in the session, and each message has one start, its deltas "
            "and one end",
            _MESSAGES,
            "dialects/unified_encode::the_messages_of_two_runs_of_a_session_have_different_ids",
            "dialects/encoders_whatever::unified_messages_are_well_formed_whatever_comes",
        ),
        holds(
            "UN14",
            "An open message ends before run_error and before the run's end",
            _OPENED,
            _MESSAGES,
        ),
        holds(
            "UN15",
            "tool_call_started is {tool_call_id, tool_name, agent, args}",
            _EXAMPLE,
            _COMPLETE,
            note="It says that the model requested the call. A rejected call has a result with "
            "is_error.",
        ),
        holds(
            "UN16",
            "tool_call_delta is {tool_call_id, delta}",
            _REAL_LONG,
            _EXAMPLE,
            "dialects/adk_decode::a_long_running_tool_progresses_and_the_run_completes",
            note="It has the progress that a running tool reports, and never pieces of arguments.",
        ),
        holds(
            "UN17",
            "tool_call_result is {tool_call_id, tool_name, result}, and result is any JSON value",
            _EXAMPLE,
            _COMPLETE,
            "dialects/unified_encode::a_call_without_a_good_end_says_is_error",
            note="The payload also has `is_error`.",
        ),
        holds(
            "UN18",
            "workflow_started is {workflow, run_id}",
            _REAL_MOVES,
            _EXAMPLE,
            _WORKFLOW,
            _OWN,
            note="Only runs of workflows have it.",
        ),
        holds(
            "UN19",
            "workflow_step_started is {run_id, step_id, description}",
            _EXAMPLE,
            _WORKFLOW,
            _OWN,
            _GRAPH,
        ),
        holds(
            "UN20",
            "workflow_step_completed is {run_id, step_id, output}",
            _EXAMPLE,
            _WORKFLOW,
            _OWN,
            _GRAPH,
        ),
        holds(
            "UN21",
            "workflow_transition is {run_id, from_step, to_step, reason}",
            _REAL_MOVES,
            _EXAMPLE,
            _OWN,
            _GRAPH,
            "dialects/agno_decode::a_router_tells_where_it_goes",
        ),
        holds(
            "UN22",
            "workflow_completed is {run_id, result {summary}}",
            _EXAMPLE,
            _WORKFLOW,
            _OWN,
            "dialects/unified_encode::a_workflow_result_is_an_object_with_a_summary",
        ),
        holds(
            "UN23",
            "agent_thought is {agent, content, debug}",
            _REAL_THOUGHTS,
            _REAL_SAID,
            _EXAMPLE,
            _GOLDEN,
        ),
        holds(
            "UN24",
            "run_error is {error_type, message, agent, step}",
            _REAL_BREAKS,
            _REAL_STEP_FAILS,
            _REAL_SAID,
            _EXAMPLE,
            _FAILED,
            "dialects/unified_encode::a_failed_step_is_a_run_error_that_names_the_step",
            "e2e/dialects::a_failed_step_is_one_run_error_with_the_name_of_the_step",
        ),
        holds(
            "UN25",
            "run_retry is {retry_count, max_retries, reason}",
            _EXAMPLE,
            "e2e/dialects::a_step_that_is_tried_again_is_a_run_retry",
            note="Only runs of Penstock's workflows have it, whose definitions say which steps are "
            "tried again. A plain run calls its agent server at most once.",
        ),
        holds(
            "UN26",
            "run_interrupted is {reason, step}",
            _REAL_BREAKS,
            _REAL_PAUSES,
            _EXAMPLE,
            _CANCELLED,
            "dialects/unified_encode::"
            "a_pause_interrupts_the_run_for_an_approval_and_does_not_end_it",
            note="The reason is `user_stop`, or `approval_required` at a pause.",
        ),
        holds(
            "UN27",
            "retrieval_started is {query, agent}",
            _REAL_SAID,
            _EXAMPLE,
            _TAKEN,
            note="No framework has such an event. An agent can send it as a custom event of that "
            "name.",
        ),
        holds(
            "UN28",
            "retrieval_result is {documents [{id, score, content}]}",
            _REAL_SAID,
            _EXAMPLE,
            "dialects/adk_events::grounding_becomes_documents",
        ),
        holds(
            "UN29",
            "automation_triggered is {workflow, trigger}",
            _REAL_RULES,
            _EXAMPLE,
            _TAKEN,
            "edge/session_events::the_stream_stays_open_for_runs_to_come_and_carries_the_epilogue",
            note="`workflow` is the rule's name, and `trigger` the type of the event. An agent can "
            "also send it as a custom event of that name.",
        ),
        holds(
            "UN30",
            "automation_completed is {workflow, result}",
            _REAL_RULES,
            _EXAMPLE,
            _TAKEN,
            note="`result` is a text: `delivered`, the run that was started, or the approval that "
            "was decided.",
        ),
        holds(
            "UN31",
            "The document has no type for a failed automation",
            "e2e/automated_runs::a_rule_that_fails_is_a_completed_automation_that_says_so",
            "dialects/unified_encode::a_failed_automation_is_a_completed_one_that_says_so",
            note="A failed automation is an automation_completed with `failed: …`.",
        ),
        holds(
            "UN32",
            "metrics_update is {cpu, memory_used, disk_free, containers_running}",
            _REAL_SAID,
            _EXAMPLE,
            _TAKEN,
            note="An agent sends it in its run, as a custom event of that name.",
        ),
        holds(
            "UN33",
            "A client can filter by nine categories",
            _CHOSEN,
            "dialects/unified_encode::a_filter_by_category_and_type_takes_what_is_in_both",
            note="The parameter is `?category=tools,errors`.",
        ),
        holds(
            "UN34",
            "A client can filter by types",
            _CHOSEN,
            note="The parameter is `?type=agent_message_delta`.",
        ),
        holds("UN35", "A client can read the events over SSE", _SSE, _BY_NAME),
        holds(
            "UN36",
            "A WebSocket delivers the same JSON",
            _SAME,
            _ROOT,
            note="Its path is `…/events/ws`.",
        ),
        holds(
            "UN37",
            "A message that a client sends over the WebSocket is not read",
            "edge/socket::a_websocket_client_that_sends_something_gets_an_error",
            note="The connection closes with 1003 or 1009.",
        ),
        holds(
            "UN38",
            "The WebSocket checks Origin",
            "edge/socket::a_foreign_page_is_refused_and_our_own_is_not",
            "web/server::a_websocket_of_another_page_is_403_though_the_cookie_holds",
        ),
        holds(
            "UN39",
            "A client can resume with Last-Event-ID or `?after=`",
            _CUT,
            "edge/socket::cursors_follow_their_events_and_resume_anywhere",
        ),
        otherwise(
            "UN40",
            "The events are compatible with the AG-UI protocol",
            "AG-UI clients reject these names and shapes. Penstock serves them in their own "
            "protocol, with the dialect `agui`.",
            "dialects/agui_encode_client::every_recorded_run_is_accepted",
            "e2e/agui_surface::text",
        ),
        holds(
            "UN41",
            "The stream works with FastAPI, Next.js and CopilotKit",
            _SSE,
            "contract/typescript::the_declarations_do_what_a_reader_needs",
            "e2e/agui_surface::text",
            "e2e/agui_surface::a_tool_that_needs_approval_runs_once_or_never",
            "e2e/browser::an_eventsource_loses_its_edge_comes_back_and_misses_nothing",
            note="It is plain SSE and JSON, also tested in a real browser. CopilotKit uses AG-UI, "
            "which is tested with the real AG-UI client.",
        ),
        holds(
            "UN42",
            "The stream works with LangGraph",
            "connector/agui_adapter::a_graph_takes_its_answer_in_the_forwarded_props",
            "dialects/agui_decode::an_interrupt_of_a_graph_takes_anything",
            note="Penstock reads LangGraph's AG-UI server in its published forms. The tests do not"
            " run LangGraph itself.",
        ),
        elsewhere(
            "UN43", "The document names Supabase", "It makes no statement about events there."
        ),
        holds(
            "UN44",
            "The stream works with n8n",
            "edge/events::names_off_leaves_out_the_event_lines",
            "edge/many_runs::without_names_every_frame_is_an_unnamed_json_object",
            note="n8n's SSE trigger uses `names=off`; webhooks come with automations.",
        ),
        holds(
            "UN45",
            "Every operation is traced",
            _COMPLETE,
            "dialects/unified_encode::every_canonical_type_is_sent_or_listed_as_omitted",
            _MATRIX,
            note="The catalogue lists the events that have no type here. The canonical stream has "
            "all events.",
        ),
        holds(
            "UN46",
            "Events have a debug mode",
            _REAL_SAID,
            _REAL_THOUGHTS,
            _EXAMPLE,
            _TAKEN,
            note="`debug` of a thought is the value that its producer gives, and false without "
            "one.",
        ),
        holds(
            "UN47",
            "There are TypeScript types",
            "contract/typescript::the_declarations_do_what_a_reader_needs",
            "contract/documents::what_is_committed_is_what_the_models_say",
        ),
        holds(
            "UN48",
            "There are Pydantic models",
            "contract/documents::the_models_need_pydantic_and_nothing_else",
            "contract/documents::a_unified_type_has_the_fields_of_its_document_and_the_run",
        ),
        elsewhere("UN49", "There are a React hook and components", "They are part of a front end."),
        holds(
            "UN50",
            "One stream has several runs of a session, in order",
            _SSE,
            _BY_NAME,
            "e2e/real_servers::runs_of_one_session_wait_for_each_other",
        ),
        holds(
            "UN51",
            "A client can read an unknown session",
            "edge/session_events::the_stream_stays_open_for_runs_to_come_and_carries_the_epilogue",
            "edge/session_events::a_client_that_reconnects_to_an_idle_session_gets_204",
            note="The stream waits for the session's first run. With `until=idle`, the response is"
            " a 204.",
        ),
    ),
    examples=(
        example("Root event structure", _ROOT, _FRAMES),
        *(example(heading, _EXAMPLE, _TAKEN) for heading in _HEADINGS),
        example("Event categories summary", _TYPES),
    ),
)
