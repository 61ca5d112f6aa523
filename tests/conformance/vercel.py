"""The table of the UI message stream of the Vercel AI SDK, version 1, as its clients demand it."""

from __future__ import annotations

from conformance.rows import Document, holds, otherwise

_ONE = "e2e/vercel_surface::a_run_is_one_message_with_its_texts_thoughts_calls_and_usage"
_ASKED = "e2e/vercel_surface::a_tool_that_needs_approval_runs_once_or_never"
_VALUE = "e2e/vercel_surface::a_value_that_a_tool_asks_for_is_the_output_of_its_call"
_OUTPUT = "edge/vercel::the_output_of_a_call_that_asks_for_it_is_the_answer"
_FORGED = "e2e/vercel_surface::no_form_of_an_answer_without_the_digest_decides_anything"
_STOPPED = "e2e/vercel_surface::a_stop_cancels_the_run_and_leaving_does_not"
_AGAIN = "e2e/vercel_surface::a_message_is_generated_again_by_a_new_run_but_not_while_one_is_open"
_CUT = "e2e/vercel_surface::the_state_after_a_cut_and_a_resume_is_that_of_an_uncut_stream"
_EVERY_CUT = "edge/cuts::the_client_has_the_same_state_wherever_its_stream_was_cut"
_REST = "e2e/vercel_surface::the_documents_transport_gets_exactly_the_rest"
_CURSORS = "edge/vercel::a_cursor_of_any_frame_gets_exactly_the_rest"
_NOTHING = "e2e/vercel_surface::a_chat_without_a_message_has_nothing_to_resume"
_ERROR = "e2e/vercel_surface::an_error_of_the_agent_is_the_chats_error"
_BROKEN = "edge/vercel::a_stream_that_breaks_off_ends_in_an_error_because_the_client_has_no_cursor"
_TEAM = "e2e/vercel_surface::the_members_of_a_team_are_parts_that_end"
_STREAM = "edge/vercel::a_message_starts_a_run_whose_stream_is_of_the_protocol"
_ACCEPTED = "dialects/vercel_encode::a_recorded_run_is_accepted_by_the_client"
_COMPLETE = "dialects/vercel_encode::a_recorded_run_is_complete"
_RESULTS = "dialects/vercel_encode::a_result_is_as_its_outcome_says"
_REFUSED = "edge/vercel::a_request_that_does_not_fit_is_refused"
_PAGE = "e2e/vercel_surface::the_documents_page_asks_its_user_goes_on_and_stops"

DOCUMENT = Document(
    name="UI message stream v1",
    prefix="VE",
    about="`/vercel/{agent}` as the packages `ai` 5.0, 6.0 and 7.0 use it",
    rows=(
        holds(
            "VE1",
            "The response is text/event-stream with `x-vercel-ai-ui-message-stream: v1`",
            _STREAM,
        ),
        holds(
            "VE2",
            "A frame is `data: ` and a chunk, and the last one `data: [DONE]`",
            _STREAM,
            note="Frames also have an `id:`, which the clients ignore.",
        ),
        holds(
            "VE3",
            "A client gets only chunks that its version knows",
            _ACCEPTED,
            _STREAM,
            note="`?sdk=` names the version, because the client does not.",
        ),
        holds("VE4", "Texts and reasoning begin, go on and end", _ACCEPTED, _COMPLETE, _ONE),
        holds("VE5", "A tool's input comes before its output", _ACCEPTED, _ONE),
        holds("VE6", "A call has an output, an error or a denial", _RESULTS, _ASKED),
        holds("VE7", "An approval is asked for and answered by the call's part", _ASKED, _PAGE),
        holds(
            "VE8",
            "The client sends `approvalDescriptor` back unchanged",
            _FORGED,
            note="It has the digest of the request, and no answer without it decides anything.",
        ),
        otherwise(
            "VE9",
            "A client sends the whole conversation, and the server takes it",
            "Only the last message counts: agents know their sessions.",
            _FORGED,
        ),
        holds("VE10", "`regenerate-message` makes another answer", _AGAIN),
        holds("VE11", "GET {api}/{chat}/stream resumes the chat's message", _CUT, _EVERY_CUT),
        holds("VE12", "Without a message to resume, the answer is 204", _NOTHING),
        holds(
            "VE13",
            "A transport with `resumeStreamIsReplay: false` gets only the rest",
            _REST,
            _CURSORS,
        ),
        holds("VE14", "A client that aborts leaves the run as it is", _STOPPED),
        holds("VE15", "A failed run is an `error` chunk", _ERROR, _BROKEN),
        holds("VE16", "Data parts with an id replace earlier ones", _TEAM),
        holds("VE17", "Metadata of the message has the usage", _ONE),
        otherwise(
            "VE18",
            "A user's message may have files",
            "Agents get its text alone; a file is 422.",
            _REFUSED,
        ),
        holds(
            "VE19",
            "`addToolOutput` sends the output of a call that the server does not execute",
            _VALUE,
            _OUTPUT,
            note="Such a call asks for a value. Its metadata have the id and the digest.",
        ),
    ),
    examples=(),
)
