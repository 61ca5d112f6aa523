"""The contracts' statements about the edge, each with the test that shows it.

The statements are numbered in the checklist of the contracts: EX for the executions contract, AD
for ADK streaming, AG for Agno, AR for the runs of a thread. Rows of other parts say which.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from support.repository import ROOT

# Row: the statement in short, and where it is shown.
STATEMENTS: dict[str, tuple[str, str]] = {
    "EX1": (
        "POST trigger streams SSE",
        "test_executions::test_the_documents_own_request_streams_whatever_it_accepts",
    ),
    "EX2": (
        "whatever it accepts",
        "test_executions::test_the_documents_own_request_streams_whatever_it_accepts",
    ),
    "EX3": (
        "JSON only: 415, 422",
        "test_executions::test_another_media_type_is_415_and_broken_json_422_in_the_contracts_shape",
    ),
    "EX4": (
        "topologyId is a number",
        "test_executions::test_a_topology_id_that_is_no_integer_is_422_and_named",
    ),
    "EX5": ("unknown topologyId", "test_executions::test_an_unknown_topology_is_404"),
    "EX6": (
        "userMessage is a text that says something",
        "test_executions::test_a_user_message_that_is_empty_or_no_text_is_422_and_named",
    ),
    "EX7": (
        "frame: event, data, blank line",
        "test_executions::test_every_frame_is_an_event_line_one_data_line_and_a_blank_one",
    ),
    "EX8": (
        "event equals category.action",
        "test_executions::test_every_frame_is_an_event_line_one_data_line_and_a_blank_one",
    ),
    "EX9": (
        "exactly six keys",
        "test_executions::test_every_envelope_has_the_six_keys_and_documented_data_alone",
    ),
    "EX10": (
        "run_id a UUID, one for all",
        "test_executions::test_run_id_timestamp_and_sequence_are_as_documented",
    ),
    "EX11": (
        "timestamp RFC 3339 Z, not decreasing",
        "test_executions::test_run_id_timestamp_and_sequence_are_as_documented",
    ),
    "EX12": (
        "sequence 1, 2, 3",
        "test_executions::test_run_id_timestamp_and_sequence_are_as_documented",
    ),
    "EX13": (
        "source null or four keys",
        "test_executions::test_every_envelope_has_the_six_keys_and_documented_data_alone",
    ),
    "EX14": (
        "no source on started and cancelled",
        "test_executions_encode::test_started_and_cancelled_have_no_source",
    ),
    "EX15": (
        "event is category and action",
        "test_executions::test_every_frame_is_an_event_line_one_data_line_and_a_blank_one",
    ),
    "EX16": (
        "lifecycle.started first",
        "test_executions::test_the_first_frame_is_the_documents_example",
    ),
    **{
        f"EX{number}": (
            what,
            "test_executions_encode::test_a_documented_action_has_exactly_the_documented_data",
        )
        for number, what in {
            17: "completed {summary}",
            18: "failed {error}",
            19: "cancelled {}",
            21: "reasoning {thought}",
            22: "tool_call {tool, args}",
            23: "tool_result {tool, result}",
            24: "dispatch.team {team_name, task}",
            25: "dispatch.worker {worker_name, task}",
            26: "warning {message}",
        }.items()
    },
    "EX20": (
        "the pieces join to the answer",
        "test_executions::test_the_pieces_of_text_join_to_the_answer",
    ),
    "EX27": (
        "system.error is not the end",
        "test_executions::test_an_error_within_the_run_does_not_end_the_stream",
    ),
    "EX28": (
        "team_name of a team's worker",
        "test_executions_encode::test_a_source_has_exactly_its_four_keys",
    ),
    "EX29": (
        "one terminal frame, the last",
        "test_executions::test_the_one_terminal_frame_is_the_last_and_the_connection_closes",
    ),
    "EX30": (
        "open over a pause",
        "test_executions::test_a_pause_is_seen_and_the_stream_stays_open_to_the_end",
    ),
    "EX31": (
        "a client that leaves cancels nothing",
        "test_executions::test_a_client_that_leaves_mid_stream_leaves_the_run_as_it_is",
    ),
    "EX32": (
        "keep-alive when idle",
        "test_executions::test_an_idle_execution_gets_keep_alive_comments",
    ),
    "EX33": (
        "POST cancel",
        "test_executions::test_a_cancel_answers_success_once_the_run_is_cancelled",
    ),
    "EX34": (
        "SUCCESS and its message",
        "test_executions::test_a_cancel_answers_success_once_the_run_is_cancelled",
    ),
    "EX35": (
        "the success's data",
        "test_executions::test_a_cancel_answers_success_once_the_run_is_cancelled",
    ),
    "EX36": (
        "CANCEL_FAILED when completed",
        "test_executions::test_the_cancel_of_a_finished_run_is_the_documents_failure",
    ),
    "EX37": (
        "unknown run",
        "test_executions::test_the_cancel_of_an_unknown_run_is_404",
    ),
    "EX38": ("bad body", "test_executions::test_a_cancel_with_a_bad_body_is_422"),
    "EX39": ("cancel twice", "test_executions::test_of_two_cancels_at_once_one_succeeds"),
    "EX40": ("cancel while paused", "test_executions::test_a_paused_run_can_be_cancelled"),
    "EX42": ("wrong method", "test_executions::test_a_wrong_method_is_405_with_allow"),
    "AD1": ("POST starts and streams", "test_run_sse::test_one_post_starts_and_streams"),
    "AD3": ("the flag", "test_settings::test_the_flag_is_on_for_the_usual_words_in_any_case"),
    "AD4": ("off by default", "test_settings::test_the_flag_is_off_for_anything_else"),
    "AD5": (
        "501 and its text",
        "test_run_sse::test_switched_off_it_is_501_before_the_body_is_looked_at",
    ),
    "AD6": ("501 for /run too", "test_adk_encoded::test_run_is_501_while_the_flag_is_off"),
    "AD8": (
        "request headers",
        "test_run_sse::test_all_documented_request_headers_are_accepted",
    ),
    **{
        f"AD{number}": (
            what,
            "test_run_sse::test_the_head_is_exactly_the_documents_and_comes_before_the_first_frame",
        )
        for number, what in {
            9: "Content-Type",
            10: "Cache-Control",
            11: "Connection",
            12: "X-Accel-Buffering",
            31: "headers early",
        }.items()
    },
    **{
        f"AD{number}": (what, "test_run_sse::test_a_wrong_field_is_422_and_named")
        for number, what in {
            13: "appName",
            15: "userId",
            16: "sessionId",
            17: "newMessage",
            18: "newMessage.parts",
            19: "newMessage.role",
        }.items()
    },
    "AD14": ("appName names the upstream's app", "test_run_sse::test_an_unknown_app_is_404"),
    "AD20": ("streaming optional", "test_run_sse::test_only_the_required_fields_are_needed"),
    **{
        f"AD{number}": (what, "test_run_sse::test_the_request_goes_on_byte_for_byte")
        for number, what in {
            21: "stateDelta forwarded",
            22: "invocationId forwarded",
            24: "unknown keys forwarded",
            25: "bytes unchanged",
        }.items()
    },
    "AD23": ("snake_case", "test_run_sse::test_snake_case_is_accepted"),
    "AD26": ("one connection", "test_run_sse::test_one_post_starts_and_streams"),
    **{
        f"AD{number}": (
            what,
            "test_run_sse::test_the_answer_is_the_upstreams_bytes_and_nothing_else",
        )
        for number, what in {
            27: "zero mutation",
            29: "blank lines",
            43: "event format",
            44: "event fields",
            50: "malformed error frame",
            66: "CRLF passes",
        }.items()
    },
    "AD28": ("no comments", "test_run_sse::test_a_silent_upstream_gets_no_comments_added"),
    "AD30": ("no buffering", "test_run_sse::test_each_frame_is_delivered_when_it_comes"),
    "AD34": ("timeout frame", "test_run_sse::test_a_timeout_is_the_documents_frame"),
    "AD35": (
        "status frame",
        "test_run_sse::test_an_upstream_status_is_the_documents_frame_in_a_200",
    ),
    "AD36": (
        "detail is upstream's text",
        "test_run_sse::test_an_upstream_status_is_the_documents_frame_in_a_200",
    ),
    "AD37": ("general frame", "test_run_sse::test_any_other_loss_is_a_stream_error"),
    "AD38": ("timestamp a number", "test_run_sse::test_a_timeout_is_the_documents_frame"),
    "AD39": (
        "once, after the bytes",
        "test_run_sse::test_half_a_frame_is_ended_before_our_error_frame",
    ),
    "AD40": (
        "ADK's own error frame",
        "test_run_sse::test_an_error_that_the_upstream_has_told_is_not_told_again",
    ),
    "AD41": (
        "closes at the end",
        "test_run_sse::test_a_clean_end_after_an_error_frame_adds_nothing",
    ),
    "AD42": (
        "client leaves, run goes on",
        "test_run_sse::test_a_client_that_leaves_leaves_the_run_as_it_is",
    ),
    "AD67": ("unreachable: STREAM_ERROR", "test_run_sse::test_any_other_loss_is_a_stream_error"),
    "AD68": ("role after parts", "test_run_sse::test_one_post_starts_and_streams"),
    "AD69": ("GET and WebSocket", "test_run_sse::test_a_websocket_is_405_too"),
    "AD70": (
        "an answer to a pause is a decision",
        "test_run_sse::test_an_answer_is_a_decision_by_its_id_and_streams_the_next_leg",
    ),
    "AD71": (
        "an agent that is no ADK agent in ADK's events",
        "test_adk_encoded::test_a_run_is_told_in_adks_events_without_ids_names_and_comments",
    ),
    "AD52": (
        "legacy POST",
        "test_adk_legacy::test_the_post_answers_as_documented_and_starts_a_run",
    ),
    "AD53": (
        "legacy POST, bad query",
        "test_adk_legacy::test_a_query_that_says_nothing_is_422_and_named",
    ),
    "AD54": (
        "legacy GET before the POST, and after the end",
        "test_adk_legacy::test_a_get_before_the_post_waits_and_is_kept_alive",
    ),
    "AD55": (
        "the three event types",
        "test_adk_legacy::test_the_get_streams_the_three_types_each_with_its_id",
    ),
    "AD56": ("legacy whatever the flag", "test_adk_legacy::test_the_flag_does_not_concern_it"),
    "AD57": (
        "legacy timeout",
        "test_adk_legacy::test_a_run_without_a_report_ends_in_a_status",
    ),
    "AD58": ("N readers see the same", "test_adk_legacy::test_all_who_look_see_the_same"),
    "AG22": (
        "an urlencoded start streams",
        "test_agno_runs::test_an_agno_upstreams_frames_pass_byte_for_byte",
    ),
    "AG23": (
        "the run id of the frames is the one to continue and cancel",
        "test_agno_surface::test_text",
    ),
    "AG24": (
        "Agno's bytes, or frames encoded",
        "test_agno_surface::test_an_agno_upstreams_bytes_are_the_clients",
    ),
    "AG25": (
        "session_id is that of the frames",
        "test_agno_runs::test_another_protocols_run_is_told_in_agnos_frames",
    ),
    "AG26": (
        "an empty session_id is a new one",
        "test_agno_runs::test_no_session_is_a_new_one_and_no_user_is_the_caller",
    ),
    "AG27": ("any user_id", "test_agno_runs::test_session_and_user_go_on_as_given"),
    "AG28": (
        "dependencies forwarded",
        "test_agno_runs::test_fields_of_agnos_own_go_on_and_those_that_are_ours_do_not",
    ),
    "AG29": (
        "invalid dependencies ignored",
        "test_agno_runs::test_invalid_dependencies_are_ignored",
    ),
    "AG30": ("files are refused", "test_agno_runs::test_a_file_is_422_and_named"),
    **{
        f"AG{number}": (
            what,
            "test_agno_runs::test_a_missing_or_empty_message_is_the_422_of_fastapi",
        )
        for number, what in {31: "missing message", 32: "empty message"}.items()
    },
    "AG33": (
        "a message of white space",
        "test_agno_runs::test_a_message_of_white_space_is_422_and_goes_nowhere",
    ),
    **{
        f"AG{number}": (
            what,
            "test_agno_runs::test_a_message_is_data_whatever_it_holds_and_however_it_comes",
        )
        for number, what in {
            34: "10k characters",
            35: "Unicode",
            36: "markup is data",
            37: "newlines",
            59: "JSON too",
        }.items()
    },
    "AG38": (
        "no stream: one object",
        "test_agno_runs::test_without_a_stream_the_run_is_one_object",
    ),
    "AG39": (
        "stream=false, paused too",
        "test_agno_continue::test_a_paused_run_is_an_object_that_can_be_sent_back",
    ),
    "AG40": (
        "unknown agent",
        "test_agno_runs::test_an_unknown_agent_or_one_of_another_kind_is_404",
    ),
    "AG41": (
        "a continue is a decision",
        "test_agno_continue::test_a_continue_is_a_decision_and_streams_the_next_leg",
    ),
    "AG42": (
        "a refused tool has no events",
        "test_agno_surface::test_a_tool_runs_once_when_it_is_confirmed_and_never_when_not",
    ),
    **{
        f"AG{number}": (
            what,
            "test_agno_continue::test_an_answer_that_does_not_fit_does_nothing",
        )
        for number, what in {
            43: "changed call",
            44: "wrong tool_call_id",
            48: "empty tools",
        }.items()
    },
    **{
        f"AG{number}": (what, "test_agno_continue::test_an_unknown_run_is_404")
        for number, what in {45: "continue of an unknown run", 51: "cancel of one"}.items()
    },
    "AG46": ("empty run_id", "test_agno_runs::test_an_empty_run_id_is_no_path"),
    "AG47": (
        "double continue",
        "test_agno_continue::test_a_second_continue_is_409_and_sends_nothing",
    ),
    "AG49": ("bad JSON", "test_agno_continue::test_bad_json_is_agnos_400"),
    "AG50": ("cancel", "test_agno_continue::test_a_running_run_is_cancelled"),
    "AG52": (
        "cancel of a finished run",
        "test_agno_continue::test_a_finished_run_cannot_be_cancelled",
    ),
    "AG54": (
        "RunError has the upstream's words",
        "test_agno_runs::test_what_cut_an_upstream_is_told_as_its_error",
    ),
    "AG55": (
        "user_id is the caller's",
        "test_auth::test_what_is_another_users_is_refused",
    ),
    "AG56": (
        "teams and workflows",
        "test_agno_runs::test_each_kind_has_its_paths_by_our_id_and_by_the_upstreams",
    ),
    "AG57": (
        "pieces as they come",
        "test_agno_runs::test_another_protocols_run_is_told_in_agnos_frames",
    ),
    "AG58": (
        "requirements without null keys",
        "test_agno_answers::test_a_requirement_without_its_null_keys_is_read",
    ),
    **{
        f"AR{number}": (what, f"test_agent_runs::test_{test}")
        for number, what, test in (
            (1, "GET streams SSE", "a_frame_is_id_event_and_data_and_its_event_is_the_type"),
            (3, "id, event, data", "a_frame_is_id_event_and_data_and_its_event_is_the_type"),
            (5, "event is the type", "a_frame_is_id_event_and_data_and_its_event_is_the_type"),
            (6, "keep-alive", "a_silent_thread_gets_the_documents_keep_alive"),
            (32, "no counters", "no_counter_is_in_the_stream_nor_in_the_history"),
            (35, "nor in the history", "no_counter_is_in_the_stream_nor_in_the_history"),
            (43, "how a run is started", "a_run_is_started_on_a_thread_by_its_session_id"),
        )
    },
    **{
        f"AR{number}": (what, f"test_threads::test_{test}")
        for number, what, test in (
            (2, "history is the stream", "the_history_is_what_the_stream_has_told"),
            (4, "Last-Event-ID", "a_cut_at_every_frame_gives_the_rest"),
            (34, "/history", "the_history_is_what_the_stream_has_told"),
            (
                38,
                "runs one after another",
                "runs_are_told_one_after_another_whatever_their_order_on_the_bus",
            ),
            (
                39,
                "closes when idle",
                "a_thread_that_goes_on_is_followed_until_nothing_is_under_way",
            ),
            (40, "unknown thread", "an_unknown_thread_is_404"),
            (41, "bad cursor", "a_cursor_that_is_not_of_this_thread_is_400"),
            (42, "a pause", "a_thread_that_waits_for_a_person_ends_with_what_is_asked"),
        )
    },
    **{
        f"AR{number}": (what, f"test_agui_encode_runs::test_{test}")
        for number, what, test in (
            (7, "RUN_STARTED", "run_started_has_three_fields"),
            (8, "RUN_FINISHED", "run_finished_has_three_fields"),
            (9, "RUN_ERROR", "run_error_has_a_code_that_is_a_string"),
            (10, "safe words", "run_error_says_the_documents_words_instead_of_our_insides"),
            (11, "steps", "a_plain_run_has_one_worker_step_around_it"),
            (12, "steps are paired", "a_run_that_fails_ends_its_step_first"),
            *(
                (number, what, "a_tool_call_is_told_as_documented")
                for number, what in (
                    (13, "TOOL_CALL_START"),
                    (14, "TOOL_CALL_ARGS"),
                    (15, "TOOL_CALL_END"),
                    (16, "TOOL_CALL_RESULT"),
                    (21, "one id"),
                    (23, "the arguments"),
                    (37, "snake names"),
                )
            ),
            (17, "a tool's status", "a_tools_status_is_one_of_three"),
            (18, "a result is text", "a_tools_result_is_text_whatever_it_was"),
            (19, "a tool's error", "a_tool_that_fails_has_its_error_as_text"),
            (20, "no ui_schema", "a_tools_result_has_no_ui_schema"),
            (25, "the whole answer", "every_answer_of_a_recorded_run_is_told_whole"),
            (
                26,
                "no deltas",
                "the_whole_answer_comes_in_one_piece_directly_before_its_end",
            ),
            (27, "role and stage", "the_end_of_a_message_is_told_as_documented"),
            (28, "a message's status", "a_word_that_the_document_does_not_have_is_not_said"),
            (29, "defaults", "the_end_of_a_message_is_told_as_documented"),
            (30, "result_type", "a_word_that_the_document_does_not_have_is_not_said"),
            (31, "a message's error", "a_message_that_failed_says_why"),
            (36, "top names", "every_recorded_run_has_the_documents_shape"),
            (33, "snapshots", "snapshots_of_state_and_messages_are_told"),
        )
    },
}

# What the edge does not decide alone.
ELSEWHERE = {
    "AD2": "the configuration: any URL may be given",
    "AD32": "connector: the total time of a leg",
    "AD33": "connector: a timeout cancels the upstream and ends the run",
    "AD45": "the ADK decoder's goldens",
    "AD46": "the ADK decoder's goldens",
    "AD47": "the ADK decoder's goldens",
    "AD48": "the ADK decoder's goldens",
    "AD49": "connector: an unclean end of file is `lost`",
    "AD51": "connector: a session is created only where it is missing",
    "AR22": "the decoders: ids that repeat within a run are made unique",
    "AR24": "the upstream's own text cannot be changed; the README of the edge says so",
    "AG53": "connector: what a cancel is answered tells nothing",
}

REQUIRED = {
    *(f"EX{number}" for number in range(1, 43) if number != 41),
    *(f"AD{number}" for number in (*range(1, 7), *range(8, 59), *range(66, 72))),
    *(f"AG{number}" for number in range(22, 60)),
    *(f"AR{number}" for number in range(1, 44)),
}


@cache
def known_tests() -> set[str]:
    """`file::function` of every test of the edge and its dialects, and over the real servers."""
    files = [*Path(__file__).parent.glob("test_*.py")]
    files += (ROOT / "tests/shared/dialects").glob("test_*_encode*.py")
    files += (ROOT / "tests/e2e").glob("test_*.py")
    return {
        f"{path.stem}::{node.name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_row_that_concerns_the_edge_has_its_place() -> None:
    assert {*STATEMENTS, *ELSEWHERE} == REQUIRED
    assert not {*STATEMENTS} & {*ELSEWHERE}


@pytest.mark.parametrize("row", STATEMENTS)
def test_the_test_of_a_row_exists(row: str) -> None:
    assert STATEMENTS[row][1] in known_tests()
