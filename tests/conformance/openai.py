"""The table of OpenAI's Responses and Chat Completions, as its clients demand them."""

from __future__ import annotations

from conformance.rows import Document, elsewhere, holds, otherwise

_WHOLE = "edge/openai_clients::a_response_is_read_whole"
_NUMBERED = (
    "edge/openai_clients::a_stream_is_numbered_without_gaps_and_resumed_exactly_at_each_number"
)
_LEFT = "edge/openai_clients::a_stream_that_the_client_left_is_continued"
_CHAT = "edge/openai_clients::a_chat_is_streamed_and_read_whole"
_MODELS = "edge/openai_clients::the_models_are_the_agents"
_DECIDED = "edge/openai_clients::a_decision_is_an_item_with_the_digest_and_continues_the_run"
_REPEATED = "edge/openai_clients::a_request_that_the_client_repeats_starts_one_run"
_KEY = "edge/openai_clients::an_idempotency_key_is_taken_as_it_is"
_REFUSED = "edge/openai_clients::a_refusal_has_openais_shape"
_QUEUED = "edge/openai_clients::a_response_waits_in_the_queue_and_is_read_while_it_runs"
_FAILED = "edge/openai_clients::a_chat_whose_run_fails_is_an_error"
_LINK = "edge/openai_answers::a_chat_gets_a_link_for_whoever_may_decide_and_then_the_rest"
_NOTHING = "edge/openai_answers::nothing_else_decides"
_SMUGGLED = "e2e/smuggled_answers::nothing_but_a_decision_answers_a_pause"
_BUILT = (
    "dialects/openai_encode::"
    "a_response_is_numbered_begins_and_ends_once_and_is_built_from_its_pieces"
)
_GOLDEN = "dialects/openai_encode::a_run_gives_its_golden_frames"
_SAYS = "dialects/openai_encode::a_chat_says_what_the_response_says"
_CANCELLED = "dialects/openai_encode::a_run_that_is_cancelled_ends_as_incomplete_with_its_status"
_DOCS = "clients/openai_docs::the_code_of_the_page_runs"
_SESSION = "clients/openai_docs::an_agent_is_asked_rejected_and_answered_in_one_session"
_CANCEL = "clients/openai_docs::a_run_is_cancelled"

DOCUMENT = Document(
    name="OpenAI's API",
    prefix="OA",
    about="`/openai/v1` as the packages `openai` 3.54 for Python and 7.57 for JavaScript use it",
    rows=(
        holds("OA1", "GET /models lists the models, and another model is a 404", _MODELS),
        holds("OA2", "A response begins, and ends once", _BUILT, _NUMBERED),
        holds("OA3", "`sequence_number` counts the events of a response", _BUILT, _NUMBERED),
        holds("OA4", "Items and their parts are added, go on and are done", _BUILT, _GOLDEN),
        holds("OA5", "Without `stream`, the answer is the response at its end", _WHOLE),
        holds("OA6", "With `background`, the answer is the response at once", _QUEUED),
        holds("OA7", "`starting_after` continues a stream after its number", _NUMBERED, _LEFT),
        holds("OA8", "GET /responses/{id} has the response as it is", _WHOLE, _QUEUED),
        holds("OA9", "GET …/input_items has what the response answers", _WHOLE, _DECIDED),
        holds(
            "OA10",
            "POST …/cancel cancels a response",
            _CANCELLED,
            _CANCEL,
            note="Its last event is `response.incomplete`, because none is for a cancel.",
        ),
        holds("OA11", "`previous_response_id` continues a conversation", _SESSION, _REFUSED),
        holds(
            "OA12",
            "An `mcp_approval_request` is answered by its id",
            _DECIDED,
            _DOCS,
            note="The id has a digest of what was shown.",
        ),
        otherwise(
            "OA13",
            "The input is a conversation, and may have answers anywhere",
            "Only answers at its end decide; all earlier items are history.",
            _NOTHING,
            _SMUGGLED,
        ),
        holds("OA14", "A tool that the server runs is an `mcp_call`", _WHOLE, _GOLDEN),
        holds("OA15", "`usage` counts the tokens, streamed on request", _WHOLE, _CHAT),
        holds("OA16", "A completion streams chunks, and `[DONE]` ends it", _CHAT, _SAYS),
        otherwise(
            "OA17",
            "A completion asks its client to run tools",
            "The agent runs its tools itself. Where its run waits for a decision, the completion "
            "ends with a text and a one-time link.",
            _LINK,
            _SAYS,
        ),
        holds(
            "OA18",
            "A client repeats a request whose answer did not come",
            _REPEATED,
            _KEY,
            note="One run starts, also without an idempotency key.",
        ),
        holds("OA19", "An error has a message, type, param and code", _REFUSED, _FAILED),
        otherwise(
            "OA20",
            "An input may have images and files",
            "Agents get its text alone; another part is 400.",
            _REFUSED,
        ),
        elsewhere(
            "OA21",
            "`instructions`, `tools`, `temperature` and `store` steer the model",
            "An agent has its own; they have no effect.",
        ),
    ),
    examples=(),
)
