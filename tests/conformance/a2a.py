"""The table of the A2A specification, release 1.0, as far as a server without gRPC is concerned."""

from __future__ import annotations

from conformance.rows import Document, holds, otherwise

_TOLD = "clients/a2a_client::each_interface_tells_the_same_task_with_its_tools"
_ASKED = "clients/a2a_client::the_python_program_asks_its_user_and_goes_on"
_JS = "clients/a2a_client::the_javascript_program_decides_and_goes_on"
_CUT = "clients/a2a_client::a_client_that_was_cut_off_subscribes_and_has_the_same_task"
_ENDS = "clients/a2a_client::a_task_is_cancelled_and_an_error_has_its_text"
_SMUGGLED = "e2e/smuggled_answers::nothing_but_a_decision_answers_a_pause"
_STREAM = "edge/a2a_tasks::a_message_streams_its_task_to_the_end"
_WHOLE = "edge/a2a_tasks::a_message_without_a_stream_gets_the_whole_task"
_AGAIN = "edge/a2a_tasks::a_client_that_subscribes_again_gets_the_task_whole_and_then_the_rest"
_CURSOR = "edge/a2a_tasks::a_cursor_continues_exactly_after_its_frame"
_TEXT = "edge/a2a_tasks::a_yes_as_text_is_told_that_the_task_waits"
_OLDER = "edge/a2a_tasks::clients_of_0_3_read_the_same_task"
_LIST = "edge/a2a_tasks::a_list_has_the_callers_tasks_and_always_a_page_token"
_CODES = "edge/a2a_tasks::a_method_that_is_refused_has_the_protocols_code"
_STATUSES = "edge/a2a_tasks::an_error_over_rest_has_the_status_of_its_reason"
_VERSION = "edge/a2a_tasks::another_version_is_refused"
_CARD = "edge/a2a_tasks::a_card_names_the_interfaces_and_the_extension"
_REPEATED = "edge/a2a_tasks::with_the_extension_a_message_that_is_sent_again_begins_no_second_task"
_SHAPE = "dialects/a2a_encode::a_stream_begins_with_its_task_and_ends_once"
_CREDENTIAL = "dialects/a2a_encode::a_credential_is_asked_for_as_authentication"
_PLAIN = "dialects/a2a_encode::without_the_extension_a_client_gets_the_same_artifacts_and_end"
_PUSHED = "clients/a2a_client::a_client_is_notified_of_its_task_until_it_ends"
_PUSHED_ALL = (
    "automations/pushes::a_push_tells_of_the_present_state_and_of_all_that_follows_until_the_end"
)
_PUSH_ENDS = (
    _PUSHED_ALL,
    "automations/pushes::a_push_that_is_removed_tells_nothing_more_and_a_repeat_changes_nothing",
)
_PUSH_GUARD = "automations/pushes::a_push_to_a_guarded_address_is_refused"

DOCUMENT = Document(
    name="A2A 1.0 and 0.3",
    prefix="AA",
    about="`/a2a/{agent}` as the SDKs for Python and JavaScript use it",
    rows=(
        holds("AA1", "A card names each interface with its version and address (8.3)", _CARD),
        holds("AA2", "A card has the headers of HTTP caching (8.6)", _CARD),
        holds("AA3", "The bindings tell the same of a task (5.1)", _TOLD),
        holds(
            "AA4", "A stream begins with its task, and ends with its end (3.1.2)", _STREAM, _TOLD
        ),
        holds("AA5", "An artifact's first piece is not appended (4.2.2)", _STREAM, _SHAPE),
        holds("AA6", "SendMessage waits for the end or an interruption (3.2.2)", _WHOLE, _ENDS),
        holds("AA7", "A task that waits gets its answer by its id (3.4.3)", _ASKED, _JS),
        holds(
            "AA8",
            "A task that needs a credential is in TASK_STATE_AUTH_REQUIRED (7.6)",
            _CREDENTIAL,
            _SHAPE,
        ),
        otherwise(
            "AA9",
            "A client goes on with a message of the same task (3.4.3)",
            "Only a data part with the digest decides; a text gets the task, with a reminder.",
            _TEXT,
            _SMUGGLED,
        ),
        holds("AA10", "SubscribeToTask begins with the task as it is (3.1.6)", _AGAIN, _CUT),
        holds("AA11", "SubscribeToTask refuses a task that has ended (3.1.6)", _AGAIN),
        holds("AA12", "CancelTask returns the cancelled task, or -32002 (3.1.5)", _ENDS),
        holds("AA13", "ListTasks has the caller's tasks, and always a token (3.1.4)", _LIST),
        otherwise(
            "AA14",
            "Tasks are sorted by their last update (3.1.4)",
            "Pages follow the tasks' creation; a page is sorted by the last update.",
            _LIST,
        ),
        holds("AA15", "Errors have their codes and an ErrorInfo (5.4)", _CODES, _STATUSES),
        holds("AA16", "Another version is refused; none means 0.3 (3.6.2)", _VERSION, _OLDER),
        holds("AA17", "An extension changes nothing for others (4.6)", _PLAIN, _CURSOR),
        holds(
            "AA18",
            "The same message may be detected by its id (3.3.1)",
            _REPEATED,
            note="With the extension, because some clients use an id twice.",
        ),
        holds("AA19", "A configuration is made, read, listed and deleted (3.1.7)", _PUSHED),
        holds("AA20", "A notification is a stream response (4.3.3)", _PUSHED, _PUSHED_ALL),
        holds("AA21", "A configuration holds until the end or its deletion (3.1.7)", *_PUSH_ENDS),
        holds("AA22", "A notification has the credentials of its configuration (4.3.3)", _PUSHED),
        holds("AA23", "No URL leads into the agent's own network (13.2)", _PUSH_GUARD, _PUSHED),
    ),
    examples=(),
)
