"""The table of agno-events.md: the events that Agno sends, and Agno's endpoints for its clients."""

from __future__ import annotations

from conformance.rows import Document, example, holds, otherwise

_EVENTS = "conformance/examples::the_events_of_the_agno_document_mean_what_they_say"
_FRAMES = "conformance/examples::a_sequence_of_the_agno_document_is_told_to_the_end"
_GOLDENS = "dialects/agno_recordings::a_recorded_stream_gives_its_golden_drafts"
_LAST_PIECE = "dialects/agno_decode::the_empty_last_piece_is_no_delta_and_its_citations_are_kept"
_FAILED_CALL = "dialects/agno_decode::a_failed_call_that_is_reported_twice_is_emitted_once"
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
_OUR_FIELDS = "edge/agno_runs::only_fields_that_the_configuration_names_are_passed_on"

DOCUMENT = Document(
    name="agno-events.md",
    prefix="AG",
    about="Agno as an upstream, and `POST /agents/{id}/runs`, `…/continue`, `…/cancel`",
    rows=(
        otherwise(
            "AG1",
            "RunStarted {run_id, session_id, model, agent_id} is lifecycle.started",
            "Penstock sends lifecycle.started before the upstream answers. The content of "
            "RunStarted follows as a custom.event.",
            "normalizer/fold::a_run_starts_with_who_asked_what",
            _EVENTS,
        ),
        holds(
            "AG2",
            "RunContent {content, content_type} becomes llm.stream",
            _EVENTS,
            "e2e/real_servers::text_from_agno",
            "dialects/agno_decode::structured_output_is_a_value_and_its_text",
        ),
        holds(
            "AG3",
            "The last RunContent, which is empty and has citations, is no delta; its "
            "citations are kept",
            _LAST_PIECE,
            _EVENTS,
        ),
        holds(
            "AG4",
            "RunContentCompleted ends the message",
            _LAST_PIECE,
            "dialects/agno_decode::the_end_of_a_message_that_never_began_is_not_emitted",
        ),
        holds("AG5", "ToolCallStarted with its tool becomes llm.tool_call", _EVENTS, _REAL_TOOL),
        holds(
            "AG6",
            "ToolCallCompleted with result, tool_call_error and metrics becomes llm.tool_result",
            _EVENTS,
            _FAILED_CALL,
        ),
        holds("AG7", "ToolCallCompleted and ToolCallError of one call count once", _FAILED_CALL),
        holds(
            "AG8",
            "RunPaused becomes approval.requested and lifecycle.paused",
            _PAUSE,
            _APPROVED,
            note="They come in this order. lifecycle.paused comes only if a person must decide.",
        ),
        holds(
            "AG9",
            "RunContinued becomes lifecycle.resumed",
            "dialects/agno_pauses::a_continued_run_is_announced_once_a_leg",
            _APPROVED,
        ),
        holds(
            "AG10",
            "RunCompleted {content, metrics} becomes lifecycle.completed with usage and metrics",
            _EVENTS,
            "dialects/agno_decode::tokens_are_usage_and_the_rest_metrics",
        ),
        holds(
            "AG11",
            "RunError of the outer run becomes lifecycle.failed",
            "dialects/agno_decode::a_failure_keeps_the_upstreams_words_and_closes_the_message",
            "dialects/agno_decode::only_the_outer_run_ends_the_run",
        ),
        holds(
            "AG12",
            "A simple text has the documented sequence of events",
            _FRAMES,
            _GOLDENS,
            "dialects/agno_encode::the_sequence_of_a_simple_text",
            _REAL_TEXT,
        ),
        holds(
            "AG13",
            "A tool that runs without approval has the documented sequence of events",
            _FRAMES,
            _GOLDENS,
            "dialects/agno_encode::the_sequence_of_a_tool_that_runs_by_itself",
            "e2e/agno_surface::a_tool_is_told_once_by_both_its_events",
        ),
        holds(
            "AG14",
            "An approved confirmation has the documented sequence of events",
            _FRAMES,
            _APPROVED,
            "dialects/agno_encode::the_sequence_of_a_confirmation_that_is_approved",
            _REAL_DECISION,
        ),
        holds(
            "AG15",
            "A rejected confirmation has the documented sequence, without tool events",
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
            "tool.result is read as JSON, then as a Python literal, and else as text",
            "dialects/agno_values::a_result_is_json_then_a_literal_then_text",
            "dialects/agno_values::a_huge_or_deep_result_stays_text_and_costs_little",
        ),
        holds(
            "AG18",
            "session_state of RunCompleted is kept",
            "dialects/agno_decode::"
            "a_session_state_that_holds_something_is_a_snapshot_before_the_end",
            note="If it has any content, it becomes a state.snapshot before the end.",
        ),
        holds("AG19", "citations {documents, raw, urls} are kept", _LAST_PIECE, _EVENTS),
        holds("AG20", "An empty reasoning_content is no reasoning", _LAST_PIECE, _EVENTS),
        holds(
            "AG21",
            "workflow_agent and created_at stay in the upstream's own bytes",
            _BYTES,
            _RECORDED,
            "edge/events::raw_gives_the_upstreams_frames_of_all_legs_with_cursors",
        ),
        holds(
            "AG22",
            "POST /agents/{agent_id}/runs takes a form, and its stream begins with `event: "
            "RunStarted`",
            _BYTES,
            _REAL_TEXT,
            _CLIENT_READS,
        ),
        holds(
            "AG23",
            "The run_id of the frames is valid for /continue and /cancel",
            _REAL_TEXT,
            _REAL_DECISION,
            "e2e/agno_surface::agnos_client_cancels",
            note="It is Penstock's run id, which Agno takes over.",
        ),
        holds(
            "AG24",
            "A frame is `event: Name` and one line of data with the documented fields",
            _BYTES,
            _RECORDED,
            "e2e/agno_surface::an_agno_upstreams_bytes_are_the_clients",
            "dialects/agno_encode::a_recorded_run_is_of_the_document_in_every_frame",
            note="A run of Agno has Agno's own bytes. The events of any other agent are written in"
            " Agno's form.",
        ),
        holds(
            "AG25",
            "The form field session_id is used",
            "edge/agno_runs::session_and_user_are_passed_on_as_given",
            _ENCODED,
        ),
        holds(
            "AG26",
            "An empty session_id is replaced by a new UUID",
            "edge/agno_runs::no_session_is_a_new_one_and_no_user_is_the_caller",
        ),
        holds(
            "AG27",
            "The form field user_id may be any string or missing",
            "edge/agno_runs::session_and_user_are_passed_on_as_given",
            "edge/agno_runs::no_session_is_a_new_one_and_no_user_is_the_caller",
        ),
        holds(
            "AG28",
            "The form field dependencies is forwarded",
            _OUR_FIELDS,
            "e2e/agno_surface::dependencies_reach_the_upstream",
            note="The agent's `accepts` must name the field, as it does in the demo; otherwise the"
            " response is a 422.",
        ),
        holds(
            "AG29",
            "Invalid dependencies are ignored",
            "edge/agno_runs::invalid_dependencies_are_ignored",
        ),
        holds(
            "AG30",
            "Other form fields and files are defined",
            _OUR_FIELDS,
            "edge/agno_runs::a_file_is_422_and_named",
            note="The fields that the agent's `accepts` names are forwarded; a file gets a 422.",
        ),
        holds("AG31", "A missing message gets a 422 with `Field required`", _NO_MESSAGE),
        holds("AG32", "An empty message gets a 422", _NO_MESSAGE),
        otherwise(
            "AG33",
            "A message of white space gets a 200 with RunStarted and RunError",
            "The response is a 422: Penstock calls no upstream for a message without content.",
            "edge/agno_runs::a_message_of_white_space_is_422_and_goes_nowhere",
        ),
        holds("AG34", "A message may have 10,000 characters", _MESSAGE, _FORM),
        holds("AG35", "A message may have any Unicode text", _MESSAGE, _FORM),
        holds(
            "AG36",
            "Markup and injections are treated as data",
            _MESSAGE,
            "e2e/browser::markup_and_fields_of_sse_in_what_is_said_are_text",
        ),
        holds("AG37", "A message may have newlines", _MESSAGE),
        holds(
            "AG38",
            "Without `stream`, the response is JSON",
            _OBJECT,
            "e2e/agno_surface::without_a_stream_a_run_is_one_object",
            "dialects/agno_encode::a_run_without_a_stream_has_its_input_and_its_messages",
        ),
        holds(
            "AG39",
            "With stream=false, the response is JSON",
            _OBJECT,
            "edge/agno_continue::a_paused_run_is_an_object_that_can_be_sent_back",
            "edge/agno_runs::a_run_that_fails_is_an_object_with_its_words_and_200",
        ),
        holds(
            "AG40",
            "An unknown agent gets a 404",
            "edge/agno_runs::an_unknown_agent_or_one_of_another_kind_is_404",
        ),
        holds(
            "AG41",
            "POST …/continue takes tools, session_id, user_id and stream",
            _CONTINUE,
            _REAL_DECISION,
            _CLIENT_DECIDES,
            note="The request is a decision on the approval, under the same rules.",
        ),
        holds(
            "AG42", "A continue with confirmed=false rejects the call", _CONTINUE, _REAL_DECISION
        ),
        holds(
            "AG43",
            "A continue with changed arguments or another tool is refused",
            _UNFIT,
            _REAL_UNFIT,
            "edge/agno_answers::a_changed_call_is_refused",
            note="The response is a 422, and nothing runs.",
        ),
        otherwise(
            "AG44",
            "A wrong tool_call_id is accepted with a 200",
            "The response is a 422, and nothing runs. The document itself calls its behaviour"
            " fragile.",
            _UNFIT,
            _REAL_UNFIT,
            "edge/agno_answers::an_unknown_call_is_refused",
        ),
        otherwise(
            "AG45",
            "The continue of an invalid run_id gets a 200 with RunError",
            "The response is a 404 with the same text, because an error that is known at once"
            " gets a status.",
            _UNKNOWN_RUN,
        ),
        holds("AG46", "An empty run_id gets a 404", "edge/agno_runs::an_empty_run_id_is_no_path"),
        otherwise(
            "AG47",
            "A second continue gets a 200 with RunError",
            "The response is a 409: there is one decision, and the tool runs once.",
            "edge/agno_continue::a_second_continue_is_409_and_sends_nothing",
            "e2e/agno_surface::of_three_continues_at_once_one_is_carried_out",
        ),
        holds(
            "AG48",
            "A continue with no tools, or without one of the tools, is refused",
            _UNFIT,
            "edge/agno_continue::an_answer_to_one_of_two_does_nothing",
            note="The response is a 422, and nothing is sent.",
        ),
        holds(
            "AG49",
            "A continue with invalid JSON is refused",
            "edge/agno_continue::bad_json_is_agnos_400",
            note="The response is a 400, as in Agno.",
        ),
        holds(
            "AG50",
            "POST …/cancel of a running run gets a 200 with {}",
            _CANCEL,
            "e2e/agno_surface::agnos_client_cancels",
        ),
        otherwise(
            "AG51",
            "The cancel of an invalid run gets a 500",
            "The response is a 404, because the server has not failed.",
            _UNKNOWN_RUN,
        ),
        otherwise(
            "AG52",
            "The cancel of a completed run gets a 500",
            "The response is a 409, because the server has not failed.",
            "edge/agno_continue::a_finished_run_cannot_be_cancelled",
        ),
        holds(
            "AG53",
            "If an upstream answers a cancel with a 500, Penstock's cancel does not fail",
            "connector/cancel::a_cancel_that_the_agent_server_did_not_accept_is_not_confirmed",
        ),
        holds(
            "AG54",
            "RunError reports later errors with the upstream's text",
            "e2e/real_servers::an_error_in_mid_stream_ends_the_run_with_the_upstreams_words",
            "edge/agno_runs::what_cut_an_upstream_is_told_as_its_error",
        ),
        holds(
            "AG55",
            "Agno trusts user_id, so Penstock must authenticate the caller",
            "web/identity::naming_another_user_needs_the_scope",
            "edge/auth::nobody_and_a_token_of_another_issuer_are_refused",
            "edge/auth::what_is_another_users_is_refused",
            note="user_id must be the token's user; otherwise the response is a 403.",
        ),
        holds(
            "AG56",
            "Teams and workflows have endpoints too",
            "edge/agno_runs::each_kind_has_its_paths_by_our_id_and_by_the_upstreams",
            "e2e/agno_surface::a_team_and_a_workflow_tell_their_own",
            "e2e/agno_surface::agnos_client_decides_for_a_teams_member",
            note="They are /teams/{id}/runs and /workflows/{id}/runs.",
        ),
        holds(
            "AG57",
            "Chunks are words and phrases, and each chunk is one delta",
            _ENCODED,
            _GOLDENS,
            "edge/agno_runs::each_frame_comes_when_it_is_whole",
        ),
        holds(
            "AG58",
            "requirements[] has keys with null",
            "edge/agno_answers::a_requirement_without_its_null_keys_is_read",
            "dialects/agno_encode::a_pause_has_the_tools_and_their_requirements",
            note="Penstock writes these keys, and a client may leave them out.",
        ),
        holds(
            "AG59",
            "A request may have a JSON body",
            _MESSAGE,
            "edge/agno_continue::answers_may_come_as_json",
            note="Penstock accepts JSON and forms.",
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
        example("Start run", _BYTES, _OUR_FIELDS, "cli/up::the_demo_answers_in_every_contract"),
        example("Continue run (after pause)", _CONTINUE, _CLIENT_DECIDES),
        example("Cancel run", _CANCEL, "e2e/agno_surface::agnos_client_cancels"),
        example("Fuzz testing: input validation", _NO_MESSAGE, _MESSAGE),
        example(
            "Fuzz testing: user and session",
            "edge/agno_runs::session_and_user_are_passed_on_as_given",
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
