"""The table of agno-events.md: the events that Agno sends, and Agno's endpoints for its clients."""

from __future__ import annotations

from conformance.rows import Document, example, holds, otherwise

_EVENTS = "conformance/examples::the_events_of_the_agno_document_mean_what_they_say"
_FRAMES = "conformance/examples::a_sequence_of_the_agno_document_is_told_to_the_end"
_GOLDENS = "dialects/agno_recordings::a_recorded_stream_gives_its_golden_drafts"
_LAST_PIECE = "dialects/agno_decode::the_empty_last_piece_is_no_delta_and_its_citations_are_kept"
_FAILED_CALL = "dialects/agno_decode::a_failed_call_is_told_twice_and_said_once"
_PAUSE = "dialects/agno_pauses::a_pause_announces_its_calls_and_then_waits_once"
_APPROVED = "e2e/real_servers::an_approved_tool_of_agno_runs_exactly_once"
_REJECTED = "e2e/real_servers::a_rejected_tool_of_agno_never_runs"
_REAL_TOOL = "e2e/real_servers::a_tool_is_called_once_and_its_result_is_a_value"
_BYTES = "edge/agno_runs::an_agno_upstreams_frames_pass_byte_for_byte"
_RECORDED = "edge/recorded::every_recorded_stream_of_agno_passes_byte_for_byte"
_ENCODED = "edge/agno_runs::another_protocols_run_is_told_in_agnos_frames"
_MESSAGE = "edge/agno_runs::a_message_is_data_whatever_it_holds_and_however_it_comes"
_FORM = "connector/agno_adapter::a_start_is_a_form_with_our_run_id"
_NO_MESSAGE = "edge/agno_runs::a_missing_or_empty_message_is_the_422_of_fastapi"
_OBJECT = "edge/agno_runs::without_a_stream_the_run_is_one_object"
_CONTINUE = "edge/agno_continue::a_continue_is_a_decision_and_streams_the_next_leg"
_UNFIT = "edge/agno_continue::an_answer_that_does_not_fit_does_nothing"
_UNKNOWN_RUN = "edge/agno_continue::an_unknown_run_is_404"
_CANCEL = "edge/agno_continue::a_running_run_is_cancelled"
_REAL_TEXT = "e2e/agno_surface::text"
_REAL_DECISION = "e2e/agno_surface::a_tool_runs_once_when_it_is_confirmed_and_never_when_not"
_REAL_UNFIT = "e2e/agno_surface::what_does_not_fit_the_pause_reaches_no_upstream"
_CLIENT_READS = "e2e/agno_surface::agnos_client_reads_a_stream"
_CLIENT_DECIDES = "e2e/agno_surface::agnos_client_decides"
_OUR_FIELDS = "edge/agno_runs::fields_that_the_configuration_names_go_on_and_no_others"

DOCUMENT = Document(
    name="agno-events.md",
    prefix="AG",
    about="Agno as an upstream, and `POST /agents/{id}/runs`, `…/continue`, `…/cancel`",
    rows=(
        otherwise(
            "AG1",
            "RunStarted {run_id, session_id, model, agent_id} is lifecycle.started",
            "lifecycle.started is said before the upstream answers; what RunStarted tells follows "
            "as custom.event.",
            "normalizer/fold::a_run_starts_with_who_asked_what",
            _EVENTS,
        ),
        holds(
            "AG2",
            "RunContent {content, content_type} is llm.stream",
            _EVENTS,
            "e2e/real_servers::text_from_agno",
            "dialects/agno_decode::structured_output_is_a_value_and_its_text",
        ),
        holds(
            "AG3",
            "The last RunContent, empty with citations, is no delta; its citations are kept",
            _LAST_PIECE,
            _EVENTS,
        ),
        holds(
            "AG4",
            "RunContentCompleted ends the message",
            _LAST_PIECE,
            "dialects/agno_decode::the_end_of_a_message_that_never_began_is_not_said",
        ),
        holds("AG5", "ToolCallStarted with its tool is llm.tool_call", _EVENTS, _REAL_TOOL),
        holds(
            "AG6",
            "ToolCallCompleted with result, tool_call_error, metrics is llm.tool_result",
            _EVENTS,
            _FAILED_CALL,
        ),
        holds("AG7", "ToolCallCompleted and ToolCallError of one call count once", _FAILED_CALL),
        holds(
            "AG8",
            "RunPaused is approval.requested and lifecycle.paused",
            _PAUSE,
            _APPROVED,
            note="In this order; paused is said only where a person must be asked.",
        ),
        holds(
            "AG9",
            "RunContinued is lifecycle.resumed",
            "dialects/agno_pauses::going_on_is_said_once_a_leg",
            _APPROVED,
        ),
        holds(
            "AG10",
            "RunCompleted {content, metrics} is lifecycle.completed with usage and metrics",
            _EVENTS,
            "dialects/agno_decode::tokens_are_usage_and_the_rest_metrics",
        ),
        holds(
            "AG11",
            "RunError of the outer run is lifecycle.failed",
            "dialects/agno_decode::a_failure_keeps_the_upstreams_words_and_closes_the_message",
            "dialects/agno_decode::only_the_outer_run_ends_the_run",
        ),
        holds(
            "AG12",
            "The sequence of a simple text",
            _FRAMES,
            _GOLDENS,
            "dialects/agno_encode::the_sequence_of_a_simple_text",
            _REAL_TEXT,
        ),
        holds(
            "AG13",
            "The sequence of a tool that runs by itself",
            _FRAMES,
            _GOLDENS,
            "dialects/agno_encode::the_sequence_of_a_tool_that_runs_by_itself",
            "e2e/agno_surface::a_tool_is_told_once_by_both_its_events",
        ),
        holds(
            "AG14",
            "The sequence of a confirmation that is approved",
            _FRAMES,
            _APPROVED,
            "dialects/agno_encode::the_sequence_of_a_confirmation_that_is_approved",
            _REAL_DECISION,
        ),
        holds(
            "AG15",
            "The sequence of one that is rejected: no tool events",
            _FRAMES,
            _REJECTED,
            "dialects/agno_encode::the_sequence_of_a_confirmation_that_is_refused",
            "dialects/agno_encode::a_tool_is_shown_once_and_a_refused_one_never",
            _REAL_DECISION,
        ),
        holds(
            "AG16",
            "RunContentCompleted comes before RunPaused",
            _FRAMES,
            "dialects/agno_encode::the_sequence_of_a_confirmation_that_is_approved",
        ),
        holds(
            "AG17",
            "tool.result is JSON, then a Python literal, else text",
            "dialects/agno_values::a_result_is_json_then_a_literal_then_text",
            "dialects/agno_values::a_huge_or_deep_result_stays_text_and_costs_little",
        ),
        holds(
            "AG18",
            "session_state of RunCompleted",
            "dialects/agno_decode::"
            "a_session_state_that_holds_something_is_a_snapshot_before_the_end",
            note="state.snapshot before the end, where it holds something.",
        ),
        holds("AG19", "citations {documents, raw, urls} are kept", _LAST_PIECE, _EVENTS),
        holds("AG20", "An empty reasoning_content is no reasoning", _LAST_PIECE, _EVENTS),
        holds(
            "AG21",
            "workflow_agent and created_at survive in the upstream's own bytes",
            _BYTES,
            _RECORDED,
            "edge/events::raw_gives_the_upstreams_frames_of_all_legs_with_cursors",
        ),
        holds(
            "AG22",
            "POST /agents/{agent_id}/runs takes a form and streams `event: RunStarted` …",
            _BYTES,
            _REAL_TEXT,
            _CLIENT_READS,
        ),
        holds(
            "AG23",
            "The run_id of the frames serves /continue and /cancel",
            _REAL_TEXT,
            _REAL_DECISION,
            "e2e/agno_surface::agnos_client_cancels",
            note="It is our run id: Agno takes it from us.",
        ),
        holds(
            "AG24",
            "A frame is `event: Name` and one line of data with the documented fields",
            _BYTES,
            _RECORDED,
            "e2e/agno_surface::an_agno_upstreams_bytes_are_the_clients",
            "dialects/agno_encode::a_recorded_run_is_of_the_document_in_every_frame",
            note="Agno's own bytes; any other agent's events are written as Agno writes them.",
        ),
        holds(
            "AG25",
            "Form field session_id",
            "edge/agno_runs::session_and_user_go_on_as_given",
            _ENCODED,
        ),
        holds(
            "AG26",
            "An empty session_id is a new UUID",
            "edge/agno_runs::no_session_is_a_new_one_and_no_user_is_the_caller",
        ),
        holds(
            "AG27",
            "Form field user_id, any string or none",
            "edge/agno_runs::session_and_user_go_on_as_given",
            "edge/agno_runs::no_session_is_a_new_one_and_no_user_is_the_caller",
        ),
        holds(
            "AG28",
            "Form field dependencies is forwarded",
            _OUR_FIELDS,
            "e2e/agno_surface::dependencies_reach_the_upstream",
            note="Where the agent's `accepts` names it, as that of the demo does; else 422.",
        ),
        holds(
            "AG29",
            "Invalid dependencies are ignored",
            "edge/agno_runs::invalid_dependencies_are_ignored",
        ),
        holds(
            "AG30",
            "Other form fields, and files",
            _OUR_FIELDS,
            "edge/agno_runs::a_file_is_422_and_named",
            note="Those that the agent's `accepts` names go on; a file is 422.",
        ),
        holds("AG31", "A missing message is 422 `Field required`", _NO_MESSAGE),
        holds("AG32", "An empty message is 422", _NO_MESSAGE),
        otherwise(
            "AG33",
            "A message of white space is 200, RunStarted and RunError",
            "422: no upstream is called for a message that says nothing.",
            "edge/agno_runs::a_message_of_white_space_is_422_and_goes_nowhere",
        ),
        holds("AG34", "10,000 characters", _MESSAGE, _FORM),
        holds("AG35", "Unicode", _MESSAGE, _FORM),
        holds(
            "AG36",
            "Markup and injections are data",
            _MESSAGE,
            "e2e/browser::markup_and_fields_of_sse_in_what_is_said_are_text",
        ),
        holds("AG37", "Newlines in a message", _MESSAGE),
        holds(
            "AG38",
            "Without `stream` the answer is JSON",
            _OBJECT,
            "e2e/agno_surface::without_a_stream_a_run_is_one_object",
            "dialects/agno_encode::a_run_without_a_stream_has_its_input_and_its_messages",
        ),
        holds(
            "AG39",
            "stream=false is JSON",
            _OBJECT,
            "edge/agno_continue::a_paused_run_is_an_object_that_can_be_sent_back",
            "edge/agno_runs::a_run_that_fails_is_an_object_with_its_words_and_200",
        ),
        holds(
            "AG40",
            "An unknown agent is 404",
            "edge/agno_runs::an_unknown_agent_or_one_of_another_kind_is_404",
        ),
        holds(
            "AG41",
            "POST …/continue with tools, session_id, user_id, stream",
            _CONTINUE,
            _REAL_DECISION,
            _CLIENT_DECIDES,
            note="It is a decision on the approval, by the same rules.",
        ),
        holds("AG42", "Continue with confirmed=false", _CONTINUE, _REAL_DECISION),
        holds(
            "AG43",
            "Continue with changed arguments or another tool",
            _UNFIT,
            _REAL_UNFIT,
            "edge/agno_answers::a_changed_call_is_refused",
            note="422, and nothing runs.",
        ),
        otherwise(
            "AG44",
            "A wrong tool_call_id is accepted (200)",
            "422, and nothing runs: the document itself calls this fragile.",
            _UNFIT,
            _REAL_UNFIT,
            "edge/agno_answers::an_unknown_call_is_refused",
        ),
        otherwise(
            "AG45",
            "Continue of an invalid run_id is 200 with RunError",
            "404 with the same words: an error that is known at once is a status.",
            _UNKNOWN_RUN,
        ),
        holds("AG46", "An empty run_id is 404", "edge/agno_runs::an_empty_run_id_is_no_path"),
        otherwise(
            "AG47",
            "A second continue is 200 with RunError",
            "409: one decision, and the tool runs once.",
            "edge/agno_continue::a_second_continue_is_409_and_sends_nothing",
            "e2e/agno_surface::of_three_continues_at_once_one_goes_on",
        ),
        holds(
            "AG48",
            "Continue with empty tools, or one left out",
            _UNFIT,
            "edge/agno_continue::an_answer_to_one_of_two_does_nothing",
            note="422, and nothing is sent.",
        ),
        holds(
            "AG49",
            "Continue with bad JSON",
            "edge/agno_continue::bad_json_is_agnos_400",
            note="400, as Agno.",
        ),
        holds(
            "AG50",
            "POST …/cancel of a running run is 200 {}",
            _CANCEL,
            "e2e/agno_surface::agnos_client_cancels",
        ),
        otherwise(
            "AG51",
            "Cancel of an invalid run is 500",
            "404: it is no failure of the server.",
            _UNKNOWN_RUN,
        ),
        otherwise(
            "AG52",
            "Cancel of a completed run is 500",
            "409: it is no failure of the server.",
            "edge/agno_continue::a_finished_run_cannot_be_cancelled",
        ),
        holds(
            "AG53",
            "An upstream's 500 to a cancel is not our failure",
            "connector/cancel::an_agno_server_that_fails_on_a_cancel_is_hung_up_on",
        ),
        holds(
            "AG54",
            "RunError tells errors that come later, with the upstream's words",
            "e2e/real_servers::an_error_in_mid_stream_ends_the_run_with_the_upstreams_words",
            "edge/agno_runs::what_cut_an_upstream_is_told_as_its_error",
        ),
        holds(
            "AG55",
            "Agno trusts user_id: who calls must be asked before",
            "web/identity::naming_another_user_needs_the_scope",
            "edge/auth::nobody_is_refused",
            "edge/auth::what_is_another_users_is_refused",
            note="user_id must be the token's user, or 403.",
        ),
        holds(
            "AG56",
            "Teams and workflows",
            "edge/agno_runs::each_kind_has_its_paths_by_our_id_and_by_the_upstreams",
            "e2e/agno_surface::a_team_and_a_workflow_tell_their_own",
            "e2e/agno_surface::agnos_client_decides_for_a_teams_member",
            note="/teams/{id}/runs and /workflows/{id}/runs.",
        ),
        holds(
            "AG57",
            "Chunks are words and phrases: one delta each",
            _ENCODED,
            _GOLDENS,
            "edge/agno_runs::each_frame_comes_when_it_is_whole",
        ),
        holds(
            "AG58",
            "requirements[] has null keys",
            "edge/agno_answers::a_requirement_without_its_null_keys_is_read",
            "dialects/agno_encode::a_pause_has_the_tools_and_their_requirements",
            note="They are written, and may be left out.",
        ),
        holds(
            "AG59",
            "A JSON body",
            _MESSAGE,
            "edge/agno_continue::answers_may_come_as_json",
            note="Taken beside forms.",
        ),
    ),
    examples=(
        example("Simple text response", _FRAMES),
        example("Auto-execute tool", _FRAMES),
        example("Confirmation required - approved", _FRAMES),
        example("Confirmation required - rejected", _FRAMES),
        example(
            "RunStarted", _EVENTS, "dialects/agno_encode::the_first_frame_says_which_run_it_is"
        ),
        example("RunContent (streaming chunk)", _EVENTS),
        example(
            "RunContent (final chunk with citations)",
            _EVENTS,
            "dialects/agno_encode::the_last_chunk_has_the_citations",
        ),
        example("ToolCallStarted", _EVENTS),
        example(
            "ToolCallCompleted",
            _EVENTS,
            "dialects/agno_encode::a_tool_is_shown_with_its_result_as_a_python_literal",
        ),
        example(
            "RunPaused",
            _EVENTS,
            "dialects/agno_encode::a_pause_has_the_tools_and_their_requirements",
        ),
        example("RunCompleted", _EVENTS, "dialects/agno_encode::a_completed_run_has_its_figures"),
        example("Start run", _BYTES, _OUR_FIELDS, "cli/up::the_demo_answers_stops_and_goes_on"),
        example("Continue run (after pause)", _CONTINUE, _CLIENT_DECIDES),
        example("Cancel run", _CANCEL, "e2e/agno_surface::agnos_client_cancels"),
        example("Fuzz testing: input validation", _NO_MESSAGE, _MESSAGE),
        example(
            "Fuzz testing: user and session",
            "edge/agno_runs::session_and_user_go_on_as_given",
            "edge/agno_runs::no_session_is_a_new_one_and_no_user_is_the_caller",
        ),
        example(
            "Fuzz testing: continue",
            _UNKNOWN_RUN,
            _UNFIT,
            "edge/agno_runs::an_empty_run_id_is_no_path",
            "edge/agno_continue::a_second_continue_is_409_and_sends_nothing",
        ),
        example(
            "Fuzz testing: other",
            _OBJECT,
            "edge/agno_runs::invalid_dependencies_are_ignored",
            "edge/agno_continue::a_finished_run_cannot_be_cancelled",
        ),
    ),
)
