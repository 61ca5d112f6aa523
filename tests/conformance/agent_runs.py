"""The table of agent-runs-sse.md: a thread's runs as AG-UI frames with the contract's fields."""

from __future__ import annotations

from conformance.rows import Document, elsewhere, example, holds, otherwise

_REAL_CALL = "conformance/real_path::a_recorded_call_has_the_documents_fields_from_start_to_result"
_REAL_DATA = "conformance/real_path::an_agents_own_data_reaches_the_client_whatever_it_is_called"
_REAL_ENDS = "conformance/real_path::a_recorded_answer_ends_as_it_came_to_its_end"
_REAL_FAILS = (
    "conformance/real_path::a_recorded_failure_is_told_in_the_upstreams_words_and_with_a_code"
)
_REAL_SAYS = "conformance/real_path::what_an_agent_tells_of_its_answer_reaches_the_client"
_REAL_STATE = (
    "conformance/real_path::an_agents_own_state_and_history_reach_the_client_whatever_their_keys"
)
_REAL_STEPS = "conformance/real_path::a_servers_own_steps_router_and_worker_pass_as_they_are"
_SHAPE = "dialects/agui_encode_runs::every_recorded_run_has_the_documents_shape"
_REAL_ADDS = (
    "conformance/real_path::what_an_ag_ui_server_adds_to_the_end_of_a_message_reaches_the_client"
)
_BY_NAME = "e2e/dialects::an_idle_session_shows_the_runs_of_a_workflow_that_was_started_by_its_name"
_TOOL = "dialects/agui_encode_runs::a_tool_call_is_sent_as_documented"
_STATUS = "dialects/agui_encode_runs::a_tools_status_is_one_of_three"
_TOOL_ERROR = "dialects/agui_encode_runs::a_tool_that_fails_has_its_error_as_text"
_END = "dialects/agui_encode_runs::the_end_of_a_message_is_sent_as_documented"
_TOLD = "dialects/agui_encode_runs::what_an_upstream_tells_of_its_answer_comes_through"
_FAILED = "dialects/agui_encode_runs::a_message_that_failed_says_why"
_WORDS = "dialects/agui_encode_runs::a_word_that_the_document_does_not_have_is_not_emitted"
_WHOLE = "dialects/agui_encode_runs::every_answer_of_a_recorded_run_is_sent_whole"
_ONE_PIECE = (
    "dialects/agui_encode_runs::the_whole_answer_comes_in_one_piece_directly_before_its_end"
)
_STARTED = "dialects/agui_encode_runs::run_started_has_three_fields"
_FINISHED = "dialects/agui_encode_runs::run_finished_has_three_fields"
_ERROR = "dialects/agui_encode_runs::run_error_has_a_code_that_is_a_string"
_STEP = "dialects/agui_encode_runs::a_plain_run_has_one_worker_step_around_it"
_COUNTERS = "dialects/agui_encode_runs::no_counter_leaves_where_a_protocol_puts_it"
_OWN_DATA = "dialects/agui_encode_runs::data_of_the_agent_keeps_its_keys_whatever_they_are_called"
_CUT_OFF = "dialects/agui_encode_runs::an_answer_that_was_cut_off_is_no_success"
_SNAPSHOTS = "dialects/agui_encode_runs::snapshots_of_state_and_messages_are_sent"
_PAUSED = (
    "dialects/agui_encode_runs::a_pause_ends_the_step_and_the_run_and_a_decision_begins_both_again"
)
_RULES = "dialects/agui_encode_rules::every_recorded_run_keeps_the_clients_rules"
_WIRE = "edge/agent_runs::a_frame_is_id_event_and_data_and_its_event_is_the_type"
_REAL = "e2e/agui_surface::an_agui_client_reads_the_runs_of_a_thread_with_our_fields_too"
_NO_COUNTER = "edge/agent_runs::no_counter_is_in_the_stream_nor_in_the_history"
_TURNS = "edge/threads::runs_are_told_one_after_another_whatever_their_order_on_the_bus"
_CUT = "edge/threads::a_cut_at_every_frame_gives_the_rest"
_HISTORY = "edge/threads::the_history_is_what_the_stream_has_told"

DOCUMENT = Document(
    name="agent-runs-sse.md",
    prefix="AR",
    about="`GET /api/v1/agent/runs/{thread_id}/events` and `…/history`",
    rows=(
        holds(
            "AR1",
            "The response to GET …/events is an SSE stream",
            _WIRE,
            _REAL,
            "edge/session_events::a_session_whose_id_has_slashes_is_found_by_every_path",
            "cli/up::the_demo_answers_in_every_contract",
        ),
        holds(
            "AR2",
            "Events are kept for the history and published for SSE",
            _HISTORY,
            note="JetStream does both.",
        ),
        holds("AR3", "A frame has id, event and data", _WIRE),
        holds(
            "AR4",
            "id serves as Last-Event-ID",
            _CUT,
            note="Its form is `<stream sequence>-<frame index>`, which looks like a Redis stream "
            "id.",
        ),
        holds("AR5", "event equals the JSON's type", _WIRE),
        holds(
            "AR6",
            "An idle stream gets `: keep-alive`",
            "edge/agent_runs::a_silent_thread_gets_the_documents_keep_alive",
        ),
        holds("AR7", "RUN_STARTED is {type, threadId, runId}", _STARTED, _WIRE),
        holds("AR8", "RUN_FINISHED is {type, threadId, runId}", _FINISHED, _WIRE),
        otherwise(
            "AR9",
            "RUN_ERROR is {…, message, code: null}",
            "code is always a string, because AG-UI clients reject null.",
            _ERROR,
        ),
        holds(
            "AR10",
            "RUN_ERROR's message is safe to show",
            _REAL_FAILS,
            "dialects/agui_encode_runs::run_error_says_the_documents_words_instead_of_our_insides",
            _ERROR,
            note="It has the upstream's text, or the document's own text if Penstock failed.",
        ),
        holds(
            "AR11",
            "STEP_STARTED and STEP_FINISHED have the stepName router or worker",
            _REAL_STEPS,
            _STEP,
            _SHAPE,
            "dialects/agui_encode_runs::an_upstreams_own_router_and_worker_pass_as_they_are",
            "dialects/agui_encode_runs::events_outside_an_upstreams_own_steps_are_the_workers",
            note="An upstream's own steps with these names are kept. All other events are in a "
            "step `worker`.",
        ),
        holds(
            "AR12",
            "Steps are paired and nested",
            _STEP,
            _RULES,
            _PAUSED,
            "dialects/agui_encode_runs::a_run_that_fails_ends_its_step_first",
        ),
        holds(
            "AR13",
            "TOOL_CALL_START has the documented fields",
            _REAL_CALL,
            _TOOL,
            "dialects/agui_encode_runs::a_tool_call_names_the_message_that_asked_for_it",
        ),
        holds(
            "AR14",
            "TOOL_CALL_ARGS has args as an object",
            _REAL_CALL,
            _REAL_DATA,
            _TOOL,
            _OWN_DATA,
            "dialects/agui_encode_runs::the_arguments_are_sent_once_however_they_came",
            note="It also has `delta`, for AG-UI clients.",
        ),
        holds("AR15", "TOOL_CALL_END has the documented fields", _REAL_CALL, _TOOL),
        holds(
            "AR16",
            "TOOL_CALL_RESULT has the documented fields",
            _REAL_CALL,
            _TOOL,
            note="It also has `toolCallId` and `content`, for AG-UI clients.",
        ),
        holds(
            "AR17",
            "The status of TOOL_CALL_RESULT is success, failure or partial",
            _REAL_CALL,
            _STATUS,
        ),
        holds(
            "AR18",
            "The result of TOOL_CALL_RESULT is a string, also for an object",
            _REAL_CALL,
            "dialects/agui_encode_runs::a_tools_result_is_text_whatever_it_was",
        ),
        holds(
            "AR19",
            "The error of TOOL_CALL_RESULT is null, or text if the call failed",
            _REAL_CALL,
            _TOOL,
            _TOOL_ERROR,
        ),
        holds(
            "AR20",
            "TOOL_CALL_RESULT has no ui_schema",
            _REAL_CALL,
            "dialects/agui_encode_runs::a_tools_result_has_no_ui_schema",
        ),
        holds("AR21", "tool_call_id equals the call's toolCallId", _REAL_CALL, _TOOL, _SHAPE),
        holds(
            "AR22",
            "tool_call_id is unique for each call",
            "conformance/real_path::a_call_id_that_a_server_repeats_is_unique_in_the_run_and_in_the_thread",
            "e2e/agui_through::two_runs_of_a_thread_in_which_a_server_repeats_its_ids_share_no_id",
            _SHAPE,
            "dialects/adk_events::an_id_that_a_model_uses_again_is_made_unique",
            "dialects/agno_decode::a_repeated_call_id_is_made_unique_also_across_legs",
        ),
        holds(
            "AR23",
            "tool_call_args has the call's arguments",
            _REAL_CALL,
            _REAL_DATA,
            _TOOL,
            _OWN_DATA,
        ),
        elsewhere(
            "AR24",
            "result does not repeat the arguments",
            "The result is the tool's own text, which a bridge must not change.",
        ),
        holds(
            "AR25",
            "TEXT_MESSAGE_END has the whole answer",
            _END,
            _WHOLE,
            "dialects/agui_encode_runs::a_workflows_answer_is_the_last_message_of_its_run",
            "e2e/dialects::a_workflows_output_is_the_last_message_of_its_run",
        ),
        otherwise(
            "AR26",
            "The stream has no deltas of tokens",
            "There is one TEXT_MESSAGE_CONTENT with the whole answer, because AG-UI clients "
            "need it.",
            _ONE_PIECE,
            _SHAPE,
            _WIRE,
        ),
        holds(
            "AR27", "TEXT_MESSAGE_END has the role assistant and the stage worker", _REAL_ENDS, _END
        ),
        holds(
            "AR28",
            "The status of TEXT_MESSAGE_END is success, partial_success or failed",
            _REAL_ENDS,
            _REAL_SAYS,
            _END,
            _TOLD,
            _FAILED,
            "dialects/agui_encode_runs::"
            "a_message_that_was_under_way_when_the_run_failed_ends_as_failed",
            _CUT_OFF,
            _WORDS,
        ),
        holds(
            "AR29",
            "TEXT_MESSAGE_END has key_points, suggested_actions and ui_schema",
            _REAL_ENDS,
            _REAL_SAYS,
            _END,
            _TOLD,
            _REAL_ADDS,
            _OWN_DATA,
            note="They have the upstream's values, or are empty without any.",
        ),
        holds(
            "AR30",
            "The result_type of TEXT_MESSAGE_END is one of four values",
            _REAL_ENDS,
            _REAL_SAYS,
            _END,
            _TOLD,
            _FAILED,
            _CUT_OFF,
            _WORDS,
        ),
        holds(
            "AR31",
            "The error of TEXT_MESSAGE_END is null, or text if the answer failed",
            _REAL_ENDS,
            _END,
            _FAILED,
            _CUT_OFF,
        ),
        holds(
            "AR32",
            "inputTokens, outputTokens, cost, latencyMs and model are never sent",
            _REAL_DATA,
            _COUNTERS,
            _NO_COUNTER,
            _OWN_DATA,
            note="These are the counters of a protocol or a framework. Arguments, results, state "
            "and custom values of the agent keep their keys, whatever these are called.",
        ),
        holds(
            "AR33",
            "STATE_SNAPSHOT and MESSAGES_SNAPSHOT are sent",
            _REAL_STATE,
            _SNAPSHOTS,
            _OWN_DATA,
        ),
        holds(
            "AR34",
            "The history is at /history",
            _HISTORY,
            _BY_NAME,
            note="Its form is `{threadId, events, next}`.",
        ),
        holds("AR35", "The history has no counters either", _NO_COUNTER),
        holds("AR36", "The top-level names are type, threadId and runId", _SHAPE, _WIRE),
        holds(
            "AR37",
            "tool_name, tool_call_id, tool_call_args and ui_schema keep their names",
            _REAL_CALL,
            _REAL_SAYS,
            _TOOL,
            _END,
        ),
        holds(
            "AR38",
            "The thread is the session, and its runs come one after another",
            _TURNS,
            _REAL,
            note="Each leg is a run of AG-UI: the leg after a pause has its own run id.",
        ),
        holds(
            "AR39",
            "The stream after RUN_FINISHED is defined",
            "edge/threads::a_thread_stays_open_and_tells_the_runs_that_are_started_later",
            "e2e/browser::an_eventsource_that_waits_for_a_thread_sees_both_of_its_runs",
            "edge/threads::a_thread_that_continues_is_followed_until_nothing_is_under_way",
            _CUT,
            note="The stream stays open with keep-alives, and later runs of the thread follow. "
            "With `until=idle`, the stream ends when no run is active or queued; a client "
            "that reconnects after this end gets a 204.",
        ),
        holds(
            "AR40",
            "A client can read an unknown thread",
            "edge/threads::a_thread_that_nobody_has_heard_of_is_waited_for",
            "edge/threads::an_unknown_thread_is_404_where_it_is_not_waited_for",
            note="The stream waits for the thread's first run. The history, and the stream with "
            "`until=idle`, give a 404.",
        ),
        holds(
            "AR41",
            "An invalid, foreign or future Last-Event-ID is refused",
            "edge/threads::a_cursor_that_is_not_of_this_thread_is_refused",
            "edge/threads::what_is_no_longer_kept_is_410",
            note="The response is a 400, or a 410 if the events are gone.",
        ),
        holds(
            "AR42",
            "A pause is visible to the client",
            "edge/threads::a_thread_that_waits_for_a_person_ends_with_what_is_asked",
            _PAUSED,
            note="It is a RUN_FINISHED with the outcome `interrupt`.",
        ),
        holds(
            "AR43",
            "A client can start a run on a thread",
            "edge/agent_runs::a_run_is_started_on_a_thread_by_its_session_id",
            note="It uses POST /v1/runs with session_id, or POST /agui/{agent}.",
        ),
    ),
    examples=(
        example("A frame: id, event, data", _WIRE),
        example(": keep-alive", "edge/agent_runs::a_silent_thread_gets_the_documents_keep_alive"),
        example("RUN_STARTED", _STARTED),
        example("RUN_FINISHED", _FINISHED),
        example("RUN_ERROR", _ERROR),
        example("STEP_STARTED", _STEP),
        example("STEP_FINISHED", _STEP),
        example("TOOL_CALL_START", _TOOL),
        example("TOOL_CALL_ARGS", _TOOL),
        example("TOOL_CALL_END", _TOOL),
        example("TOOL_CALL_RESULT", _TOOL, _STATUS, _TOOL_ERROR),
        example("TEXT_MESSAGE_END", _END, _TOLD, _FAILED),
        example("STATE_SNAPSHOT, MESSAGES_SNAPSHOT", _SNAPSHOTS),
    ),
)
