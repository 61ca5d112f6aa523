"""The table of adk-streaming.md: POST /run_sse, its errors, its security, and the legacy pair."""

from __future__ import annotations

from conformance.rows import Document, elsewhere, example, holds, otherwise

_STARTS = "edge/run_sse::one_post_starts_and_streams"
_HEAD = "edge/run_sse::the_head_is_exactly_the_documents_and_comes_before_the_first_frame"
_HEADERS = "edge/run_sse::all_documented_request_headers_are_accepted"
_FIELDS = "edge/run_sse::a_wrong_field_is_422_and_named"
_REQUEST = "edge/run_sse::the_request_is_passed_on_byte_for_byte"
_BYTES = "edge/run_sse::the_answer_is_the_upstreams_bytes_and_nothing_else"
_RECORDED = "edge/recorded::every_recorded_stream_of_adk_passes_byte_for_byte"
_OFF = "edge/run_sse::switched_off_it_is_501_before_the_body_is_looked_at"
_TIMEOUT = "edge/run_sse::a_timeout_is_the_documents_frame"
_STATUS = "edge/run_sse::an_upstream_status_is_the_documents_frame_in_a_200"
_REFUSED = "connector/frames::a_refusal_carries_status_and_words"
_LOST = "edge/run_sse::any_other_loss_is_a_stream_error"
_OURS = "dialects/adk_encode::our_own_failures_are_the_documents_frames"
_TIMED_OUT = "e2e/adk_surface::an_agents_timeout_is_the_documents_frame_and_the_pairs_status"
_GOLDENS = "dialects/adk_decode::a_recorded_run_gives_its_golden_drafts"
_PAIR = "e2e/adk_surface::the_legacy_pair_tells_the_same_to_all"
_POSTED = "edge/adk_legacy::the_post_answers_as_documented_and_starts_a_run"
_THREE = "edge/adk_legacy::the_get_streams_the_three_types_each_with_its_id"
_CURL = "cli/up::the_demo_answers_stops_and_continues"
_EVENTS = "conformance/examples::the_events_of_the_adk_document_mean_what_they_say"
_WIRE = "conformance/examples::the_stream_of_the_adk_document_is_read_and_passes_unchanged"
_WIRE_HTTP = "edge/recorded::the_documents_own_stream_passes_byte_for_byte"
_ENCODED = "dialects/adk_encode::text_a_call_and_its_result_are_the_documents_examples"
_TRANSFER = "dialects/adk_events::both_forms_of_a_transfer_are_read"

DOCUMENT = Document(
    name="adk-streaming.md",
    prefix="AD",
    about="`POST /run_sse` and the legacy pair under `/apps/…/run`",
    rows=(
        holds(
            "AD1",
            "POST /run_sse starts and streams in one request",
            _STARTS,
            "e2e/real_servers::run_sse_creates_the_session_and_passes_every_byte",
        ),
        otherwise(
            "AD2",
            "The upstream is http://127.0.0.1:8080/run_sse",
            "The configuration has the address of each agent. The README uses that address as"
            " an example.",
            "connector/adk_adapter::a_message_becomes_a_streaming_request",
        ),
        holds(
            "AD3",
            "ENABLE_ADK_CANONICAL_STREAM=true turns it on",
            "edge/settings::the_flag_is_on_for_the_usual_words_in_any_case",
        ),
        holds(
            "AD4",
            "It is off by default",
            "edge/settings::the_flag_is_off_for_anything_else",
            note="The demo turns it on.",
        ),
        holds(
            "AD5",
            "If the endpoint is switched off, the response is a 501 with the document's text",
            _OFF,
        ),
        holds(
            "AD6",
            "POST /run is also switched off",
            "edge/adk_encoded::run_is_501_while_the_flag_is_off",
            note="The response is a 501 too.",
        ),
        elsewhere(
            "AD7",
            "The front end has the flag NEXT_PUBLIC_ENABLE_ADK_CANONICAL_STREAM",
            "This flag belongs to the front end.",
        ),
        holds("AD8", "The four documented request headers are accepted", _HEADERS),
        holds("AD9", "The response has the header Content-Type: text/event-stream", _HEAD),
        holds(
            "AD10",
            "The response has the header Cache-Control: no-cache",
            _HEAD,
            "web/server::an_event_stream_keeps_the_head_of_its_contract",
        ),
        holds("AD11", "The response has the header Connection: keep-alive", _HEAD),
        holds("AD12", "The response has the header X-Accel-Buffering: no", _HEAD),
        holds("AD13", "appName is a required string", _FIELDS),
        holds(
            "AD14",
            "appName names the agent",
            "edge/run_sse::an_unknown_app_is_404",
            "edge/adk_encoded::another_protocols_agent_is_found_by_our_id_and_by_its_own_name",
            note="An ADK agent is found by its name at its upstream. Any other agent is found by "
            "that name and by Penstock's id.",
        ),
        holds("AD15", "userId is required", _FIELDS),
        holds("AD16", "sessionId is required", _FIELDS),
        holds("AD17", "newMessage is required", _FIELDS),
        holds(
            "AD18",
            "newMessage.parts is required; a part has text, functionCall or functionResponse",
            _FIELDS,
            "edge/run_sse::parts_that_are_no_text_are_not_judged_as_text",
            "edge/run_sse::an_answer_is_a_decision_by_its_id_and_streams_the_next_leg",
        ),
        holds("AD19", "newMessage.role is always user", _FIELDS),
        holds(
            "AD20",
            "streaming is optional, and false by default",
            "edge/run_sse::only_the_required_fields_are_needed",
            "edge/adk_encoded::without_streaming_there_are_no_partial_events",
        ),
        holds(
            "AD21",
            "stateDelta is optional and forwarded",
            _REQUEST,
            _FIELDS,
            note="The agent's `accepts` must name the field, as it does in the demo; otherwise the"
            " response is a 422.",
        ),
        otherwise(
            "AD22",
            "invocationId is optional and forwarded",
            "The field continues a run that waits. So it is accepted beside an answer to a "
            "pause if it is the pause's own invocation; any other invocation gets a 422. A "
            "new run with the field gets a 422, because it would bypass the approval.",
            "edge/run_sse::the_invocation_that_an_answer_names_goes_with_the_decision_if_it_is_the"
            "_pauses_own",
            "connector/adk_adapter::1_16_is_given_the_pauses_own_invocation_when_the_answer_names"
            "_it",
            "edge/starts::what_could_answer_a_pause_is_422_and_named_on_every_surface",
            _FIELDS,
        ),
        holds(
            "AD23",
            "camelCase and snake_case are accepted",
            "edge/run_sse::snake_case_is_accepted",
            note="A request with a field under both names gets a 422.",
        ),
        otherwise(
            "AD24",
            "Unknown top-level keys are forwarded",
            "The keys that the agent's `accepts` names are forwarded. Others get a 422, "
            "because Penstock does not know their effect on the server.",
            "edge/starts::a_start_passes_nothing_that_is_not_named",
        ),
        holds(
            "AD25",
            "The request's bytes are forwarded unchanged",
            _REQUEST,
            "connector/adk_adapter::a_body_is_passed_on_byte_for_byte",
        ),
        holds("AD26", "Start and stream need one connection and no GET request", _STARTS),
        holds("AD27", "The body is not changed: it has the upstream's bytes", _BYTES, _RECORDED),
        holds(
            "AD28",
            "No id lines and no comments are added",
            "edge/run_sse::a_silent_upstream_gets_no_comments_added",
            _BYTES,
            note="To reconnect to such a run, a client uses GET /v1/runs/{id}/events?dialect=raw.",
        ),
        holds("AD29", "Empty lines are forwarded", _BYTES),
        holds(
            "AD30",
            "Frames are not buffered: each is delivered when it arrives",
            "edge/run_sse::each_frame_is_delivered_when_it_comes",
        ),
        holds("AD31", "The head of the response comes before the first frame", _HEAD),
        holds(
            "AD32",
            "A request has a limit of 300 s in total",
            "connector/cancel::the_limit_is_300_s_unless_the_configuration_says_another",
            "connector/cancel::the_limit_is_for_the_whole_answer_and_not_for_its_silence",
            note="`timeout_s` of each agent sets the limit for each request to its server.",
        ),
        holds(
            "AD33",
            "At the limit the connection closes",
            _TIMEOUT,
            "connector/cancel::a_timeout_cancels_the_upstream_and_is_told_as_a_timeout",
            note="The upstream is cancelled, and the run ends with code `timeout`.",
        ),
        holds(
            "AD34",
            "At a timeout, a 200 has the frame {error, error_code, timestamp}",
            _TIMEOUT,
            _TIMED_OUT,
            note="The number in the frame's text is the agent's limit.",
        ),
        holds(
            "AD35",
            "An error status of the upstream gives the frame {error, status_code, detail}",
            _STATUS,
            _REFUSED,
            _OURS,
        ),
        holds(
            "AD36",
            "detail is the upstream's own text",
            _STATUS,
            _REFUSED,
            note="The text is not parsed.",
        ),
        holds(
            "AD37",
            "Any other error gives the frame {error, error_code: STREAM_ERROR}",
            _LOST,
            _OURS,
        ),
        holds("AD38", "The timestamp of an error frame is a number", _TIMEOUT, _STATUS, _LOST),
        holds(
            "AD39",
            "Our error frame comes once, after the upstream's bytes",
            "edge/run_sse::half_a_frame_is_ended_before_our_error_frame",
            _LOST,
        ),
        holds(
            "AD40",
            "ADK's own error frame is forwarded, and Penstock adds none",
            "edge/run_sse::an_error_that_the_upstream_has_told_is_not_told_again",
            "edge/run_sse::a_clean_end_after_an_error_frame_adds_nothing",
            _RECORDED,
        ),
        holds(
            "AD41",
            "The connection closes after completion, a timeout or an error, and when the "
            "client disconnects",
            _STARTS,
            _TIMEOUT,
            _LOST,
            "edge/run_sse::a_clean_end_after_an_error_frame_adds_nothing",
            "edge/run_sse::a_client_that_leaves_leaves_the_run_as_it_is",
        ),
        holds(
            "AD42",
            "A client may disconnect during the stream",
            "edge/run_sse::a_client_that_leaves_leaves_the_run_as_it_is",
            note="The run continues: a disconnect is no cancel.",
        ),
        holds(
            "AD43", "A frame is `data: ` with JSON on one line, and a blank line", _WIRE, _RECORDED
        ),
        holds("AD44", "An event has author, invocationId and timestamp", _EVENTS, _RECORDED),
        holds(
            "AD45",
            "The parts text, functionCall and functionResponse are decoded",
            _EVENTS,
            _GOLDENS,
        ),
        holds(
            "AD46",
            "A functionResponse may lack an id",
            "dialects/adk_events::the_documents_call_and_response_without_ids_are_paired_by_name",
            "dialects/adk_events::a_response_with_neither_id_nor_name_answers_the_oldest_call",
        ),
        holds(
            "AD47",
            "A functionCall may lack an id",
            "dialects/adk_events::the_documents_call_and_response_without_ids_are_paired_by_name",
        ),
        holds(
            "AD48",
            "actions.transfer_to_agent is {target, reason}",
            _TRANSFER,
            "dialects/adk_decode::a_transfer_is_recognized_by_its_action_alone",
            note="Real servers write transferToAgent; Penstock reads both.",
        ),
        holds(
            "AD49",
            "An unclean end is a failure; a clean end is a completion or a pause",
            "normalizer/fold::a_lost_upstream_ends_with_its_own_words",
            "dialects/adk_decode::"
            "a_cut_stream_gives_the_same_drafts_up_to_the_cut_and_closes_its_message",
            _GOLDENS,
        ),
        holds(
            "AD50",
            "The malformed error frame of ADK 1.16 is kept and understood",
            _BYTES,
            "dialects/adk_decode::the_unescaped_error_of_1_16_is_one_failure_with_its_raw_text",
        ),
        holds(
            "AD51",
            "A missing session is created",
            "e2e/real_servers::run_sse_creates_the_session_and_passes_every_byte",
            "connector/adk_adapter::a_session_that_exists_is_only_read",
            "connector/adk_adapter::a_session_is_created_when_it_is_missing",
            note="Penstock reads the session first, because ADK 1.16 replaces a session that is "
            "created again.",
        ),
        holds("AD52", "The legacy POST with {query} gets {success, sessionId}", _POSTED, _PAIR),
        holds(
            "AD53",
            "A legacy POST with an invalid query is refused",
            "edge/adk_legacy::a_query_that_says_nothing_is_422_and_named",
            note="The response is a 422.",
        ),
        holds(
            "AD54",
            "The response to the legacy GET is an SSE stream",
            _THREE,
            "edge/adk_legacy::a_get_before_the_post_waits_and_is_kept_alive",
            "edge/adk_legacy::a_run_that_is_over_is_replayed_from_its_start",
        ),
        holds(
            "AD55",
            "The types of the legacy stream are research_update, agent_status and "
            "research_complete",
            _THREE,
            _PAIR,
        ),
        holds(
            "AD56",
            "The legacy pair does not depend on the flag",
            "edge/adk_legacy::the_flag_does_not_concern_it",
        ),
        holds(
            "AD57",
            "The background task has a limit of 300 s",
            "edge/adk_legacy::a_run_without_a_report_ends_in_a_status",
            _TIMED_OUT,
        ),
        holds(
            "AD58",
            "All clients of the legacy GET see the same events",
            "edge/adk_legacy::all_who_look_see_the_same",
            _PAIR,
        ),
        holds(
            "AD59",
            "The Authorization header has a JWT as bearer token",
            "edge/auth::nobody_and_a_token_of_another_issuer_are_refused",
            "edge/auth::a_caller_with_the_scopes_is_served",
            note="It is required if authentication is configured.",
        ),
        holds(
            "AD60",
            "The token may come from a cookie",
            "web/cookies::login_gives_a_cookie_that_no_script_can_read",
            "edge/auth::a_cookie_starts_runs_with_a_csrf_token",
        ),
        holds(
            "AD61",
            "With ALLOW_UNAUTHENTICATED_SSE=true, no caller needs a token",
            "edge/auth::a_flag_for_development_lets_everybody_in",
            "web/settings::the_bypass_has_its_contracts_name",
            "web/server::not_asking_is_loud",
        ),
        holds(
            "AD62",
            "X-CSRF-Token is checked on POST",
            "web/cookies::an_unsafe_request_by_cookie_needs_one",
            "web/cookies::with_the_token_and_its_cookie_it_continues",
            "web/cookies::a_bearer_needs_none",
            note="It is checked if the credential is a cookie; GET /v1/csrf returns the token.",
        ),
        holds(
            "AD63",
            "X-CSRF-Token is not required on localhost",
            "web/cookies::a_peer_on_this_machine_needs_none",
            "web/cookies::what_host_says_makes_nobody_local",
            note="The peer's address decides this, and never the Host header.",
        ),
        holds(
            "AD64",
            "A URL has no JWT",
            "web/jwt::a_token_in_the_url_is_refused_everywhere_even_one_that_holds",
            "web/stream_tokens::it_opens_a_get_event_stream_and_reads_only",
            note="Clients that can send only a URL use stream tokens, which allow reading only.",
        ),
        elsewhere(
            "AD65",
            "The front end has a proxy at POST /api/sse/run_sse",
            "It is a route of Next.js. A browser can call Penstock itself, with the cookie of"
            " POST /v1/login.",
        ),
        holds(
            "AD66",
            "A client splits on blank lines and reads `data:`",
            "edge/recorded::adks_own_kind_of_client_reads_what_we_read",
            _WIRE,
        ),
        holds(
            "AD67",
            "An ADK server that is unreachable gives a clear error",
            _LOST,
            "e2e/adk_surface::a_failure_is_the_last_frame_and_runs_status",
        ),
        holds("AD68", "The curl example works, with role after parts", _CURL, _STARTS),
        holds(
            "AD69",
            "A GET request or a WebSocket on /run_sse is refused",
            "edge/run_sse::a_wrong_method_is_405_with_allow",
            "edge/run_sse::a_websocket_is_405_too",
            note="The response is a 405.",
        ),
        holds(
            "AD70",
            "A functionResponse can answer a pause",
            "edge/run_sse::an_answer_is_a_decision_by_its_id_and_streams_the_next_leg",
            "edge/run_sse::the_second_answer_is_409",
            "e2e/real_servers::a_function_response_to_run_sse_is_a_decision_and_only_one",
            note="It is a decision under the approval's rules: only one counts, and it cannot "
            "bypass the approval.",
        ),
        holds(
            "AD71",
            "/run_sse serves agents that are no ADK agents",
            "edge/adk_encoded::a_run_is_told_in_adks_events_without_ids_names_and_comments",
            "dialects/adk_encode::a_recorded_run_is_of_the_document_in_every_frame",
            "e2e/adk_surface::run_and_run_sse_tell_the_same",
        ),
    ),
    examples=(
        example("HTTP headers: request", _HEADERS),
        example("HTTP headers: response", _HEAD),
        example("Example JSON request", _STARTS, _FIELDS),
        example("SSE wire format", _WIRE, _WIRE_HTTP),
        example("1. Agent text output", _EVENTS, _ENCODED),
        example("2. Function call", _EVENTS, _ENCODED),
        example("3. Function response", _EVENTS, _ENCODED),
        example(
            "4. Agent transfer action",
            _EVENTS,
            "dialects/adk_encode::a_transfer_is_an_action_as_real_servers_have_it",
        ),
        example("Timeout error", _TIMEOUT, _OURS),
        example("HTTP status errors", _STATUS, _OURS),
        example("Feature flag disabled", _OFF),
        example("General stream errors", _LOST, _OURS),
        example("Legacy: trigger", _POSTED),
        example("Legacy: stream", _THREE),
        example("Manual curl test", _CURL),
    ),
)
