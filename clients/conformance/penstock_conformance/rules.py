"""The rules that are the same for all protocols. Each is pure: it reads what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from penstock_conformance import scenarios as done
from penstock_conformance.dialect import Dialect, How, NotShown, Seen, What, of, text_of
from penstock_conformance.exchange import End, Exchange, Frame
from penstock_conformance.scenarios import (
    Answered,
    BrokenOff,
    Cancelled,
    Cursors,
    Cuts,
    Foreign,
    Forged,
    Hostile,
    Stalled,
)
from penstock_conformance.statements import Group, Level, Row, Rule
from penstock_conformance.trial import streamed

SSE: Final = "https://html.spec.whatwg.org/multipage/server-sent-events.html"
HTTP: Final = "https://www.rfc-editor.org/rfc/rfc9110.html"
_CWE: Final = "https://cwe.mitre.org/data/definitions"

_TRACES: Final = (b"Traceback (most recent call last)", b"    at Object.", b"goroutine 1 [")


def _whole(dialect: Dialect, exchange: Exchange) -> list[Seen]:
    return dialect.read(streamed(exchange))


def _require(dialect: Dialect, exchange: Exchange, what: What) -> list[Seen]:
    """Return what of this kind the stream has.

    Raises:
        NotShown: it has none.
    """
    found = of(_whole(dialect, exchange), what)
    if not found:
        raise NotShown(f"{exchange} has no {what.value}")
    return found


# --- shape


def _is_stream(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    if exchange.status in (401, 403):
        raise NotShown(f"{exchange} was refused for its credentials: pass --header")
    if exchange.status != 200:
        said = exchange.content[:200].decode(errors="replace")
        yield f"{exchange.request} is answered with {exchange.status}: {said}"
    elif not exchange.is_stream:
        yield f"the content type is {exchange.headers.get('content-type')}, no text/event-stream"
    elif not exchange.frames:
        yield "the stream has no frame"


def _is_json(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for index, frame in enumerate(streamed(exchange).frames):
        if not frame.fields and frame.data not in dialect.sentinels:
            yield f"frame {index} is no JSON object: {frame.data[:80]!r}"


def _is_utf8(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    try:
        streamed(exchange).content.decode()
    except UnicodeDecodeError as error:
        if exchange.end is End.WHOLE:
            yield f"the body is no UTF-8: {error}"


IS_STREAM: Final = Rule(
    "is-stream", Group.SHAPE, "A start is answered with an event stream", (done.TEXT,), _is_stream
)
IS_JSON: Final = Rule(
    "is-json", Group.SHAPE, "Each frame is one JSON object", done.STREAMS, _is_json
)
IS_UTF8: Final = Rule("is-utf8", Group.SHAPE, "The stream is UTF-8", done.STREAMS, _is_utf8)


# --- order


def _begins(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    seen = _whole(dialect, exchange)
    if not seen:
        yield "no frame says anything that the protocol knows"
    elif (seen[0].what is not What.BEGIN and seen[0].how is not How.FAILED) or seen[0].frame:
        yield f"the first thing is {seen[0].what.value}, in frame {seen[0].frame}"
    for again in of(seen, What.BEGIN)[1:]:
        yield f"it begins again in frame {again.frame}"


def _calls_first(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    called: set[str] = set()
    _require(dialect, exchange, What.RESULT)
    for each in _whole(dialect, exchange):
        if each.what is What.CALL:
            called.add(each.id)
        elif each.what is What.RESULT and each.id not in called:
            yield f"frame {each.frame} has the result of a call that was not made: {each.id}"


BEGINS: Final = Rule(
    "begins", Group.ORDER, "A stream begins with its beginning", done.STREAMS, _begins
)
CALLS_FIRST: Final = Rule(
    "calls-first", Group.ORDER, "A tool's result comes after its call", (done.CALLS,), _calls_first
)


# --- ends


def _ends_once(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    seen = _whole(dialect, exchange)
    if exchange.end is End.LEFT:
        raise NotShown("the stream stays open at a question")
    found = of(seen, What.END)
    if not found:
        yield f"{exchange} has no end"
        return
    for more in found[1:]:
        yield f"it ends again in frame {more.frame}"
    for late in [each for each in seen if each.frame > found[0].frame and each not in found]:
        yield f"{late.what.value} in frame {late.frame} comes after the end"


def _closes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    if not of(_whole(dialect, exchange), What.END) or exchange.end is End.LEFT:
        raise NotShown(f"{exchange} has no end, after which it could close")
    if exchange.end is not End.WHOLE:
        yield f"after the end, the body is {exchange.end.value}"


def _completes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for end in _require(dialect, exchange, What.END)[-1:]:
        if end.how is not How.COMPLETED:
            yield f"frame {end.frame} says {end.how.value}"


def _fails(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for end in _require(dialect, exchange, What.END)[-1:]:
        if end.how is not How.FAILED:
            yield f"frame {end.frame} says {end.how.value}, but the agent has failed"


ENDS_ONCE: Final = Rule(
    "ends-once",
    Group.ENDS,
    "A stream has one end, and nothing comes after it",
    done.STREAMS,
    _ends_once,
)
CLOSES: Final = Rule(
    "closes", Group.ENDS, "The server closes the body after the end", done.STREAMS, _closes
)
COMPLETES: Final = Rule(
    "completes",
    Group.ENDS,
    "The end of a run that has completed says so",
    (done.TEXT, done.CALLS),
    _completes,
)
FAILS: Final = Rule(
    "fails", Group.ENDS, "The end of a run that has failed says so", (done.FAILS,), _fails
)


# --- duplicates


def _once(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    _require(dialect, exchange, What.CALL)
    seen = _whole(dialect, exchange)
    for what in (What.CALL, What.RESULT):
        for id, number in Counter(each.id for each in of(seen, what)).items():
            if number > 1:
                yield f"the {what.value} {id} comes {number} times"


def _ids_once(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    ids = [frame.id for frame in streamed(exchange).frames if frame.id is not None]
    if not ids:
        raise NotShown("the frames have no ids")
    for id, number in Counter(ids).items():
        if number > 1:
            yield f"the id {id} is that of {number} frames"


ONCE: Final = Rule(
    "once",
    Group.DUPLICATES,
    "Each tool call comes once, and has one result",
    (done.CALLS, done.ASKS),
    _once,
)
IDS_ONCE: Final = Rule(
    "ids-once", Group.DUPLICATES, "No id is that of two frames", done.STREAMS, _ids_once
)

# --- resume


def _differences(
    dialect: Dialect, expected: Sequence[Frame], got: Sequence[Frame], *, by_meaning: bool = False
) -> Iterator[str]:
    """Compare the frames of a run, with all their data or with what the protocol reads of them."""

    def keys(frames: Sequence[Frame]) -> list[object]:
        of_run = [each for each in frames if dialect.is_of_run(each)]
        if not by_meaning:
            return [(dialect.cursor(each), each.value or each.data) for each in of_run]
        return [(dialect.cursor(each), *dialect.seen(each, 0)) for each in of_run]

    wanted, found = keys(expected), keys(got)
    if wanted == found:
        return
    missing = [key for key in wanted if key not in found]
    more = [key for key in found if key not in wanted]
    if missing or more:
        example = f", such as {str((missing or more)[0])[:160]}"
        yield f"{len(missing)} frames are missing, {len(more)} are not of the stream{example}"
    elif len(found) > len(wanted):
        yield f"{len(found) - len(wanted)} frames come twice"
    else:
        yield "the frames come in another order"


def _rests(dialect: Dialect, cuts: Cuts) -> Iterator[str]:
    for index, rest in cuts.rests.items():
        expected = cuts.whole.frames[index + 1 :]
        if rest.status == 204 and all(each.data in dialect.sentinels for each in expected):
            continue
        if rest.status != 200:
            yield f"after frame {index} the answer is {rest.status}"
            continue
        for difference in _differences(dialect, expected, rest.frames):
            yield f"after frame {index} of {len(cuts.whole.frames)}: {difference}"
        if rest.end is not End.WHOLE:
            yield f"after frame {index} the body is {rest.end.value}"


def _while_running(dialect: Dialect, broken: BrokenOff) -> Iterator[str]:
    got = broken.first.frames + streamed(broken.rest).frames
    # A server may add figures of the whole run to the end that it has stored.
    yield from _differences(dialect, streamed(broken.whole).frames, got, by_meaning=True)


def _goes_on(dialect: Dialect, broken: BrokenOff) -> Iterator[str]:
    seen = _whole(dialect, broken.rest)
    is_completed = any(each.how is How.COMPLETED for each in of(seen, What.END))
    # One text may have come before the server saw that its client had left.
    if len(of(seen, What.TEXT)) < 2 and not is_completed:
        yield "after the client had left, the agent said at most one text more"


RESUMES: Final = Rule(
    "resumes",
    Group.RESUME,
    "A client that was cut off after any frame gets exactly the frames after it",
    done.CUTS,
    _rests,
)
RESUMES_LIVE: Final = Rule(
    "resumes-live",
    Group.RESUME,
    "A client that comes back while the run goes on has missed nothing",
    (done.BROKEN_OFF,),
    _while_running,
)
GOES_ON: Final = Rule(
    "goes-on",
    Group.RESUME,
    "A client that leaves does not stop the run",
    (done.BROKEN_OFF,),
    _goes_on,
)


# --- gaps


def _gaps_are_told(dialect: Dialect, cursors: Cursors) -> Iterator[str]:
    for name, got in cursors.tries.items():
        if 400 <= got.status < 500:
            continue
        if got.status >= 500:
            yield f"{name}: the answer is {got.status}"
        elif next(_differences(dialect, cursors.whole.frames, got.frames), None) is not None:
            number = len(got.frames)
            yield f"{name}: {number} of {len(cursors.whole.frames)} frames, and no word of a gap"


GAPS: Final = Rule(
    "gaps",
    Group.GAPS,
    "A cursor that is not of the run is refused, or the whole run comes: no gap is silent",
    (done.CURSORS,),
    _gaps_are_told,
)


# --- cancel


def require_cancel(dialect: Dialect, cancelled: Cancelled) -> None:
    """Raise NotShown for a server that cancels nothing, where the protocol lets it."""
    if cancelled.cancel.status in dialect.no_cancel:
        raise NotShown(f"the server does not cancel a run that exists: {cancelled.cancel}")


def _cancels(dialect: Dialect, cancelled: Cancelled) -> Iterator[str]:
    require_cancel(dialect, cancelled)
    answer = cancelled.cancel
    if answer.status >= 400:
        yield f"the cancel is answered with {answer.status}: {answer.content[:160]!r}"
        return
    found = of(dialect.read(cancelled.stream), What.END)
    if not found:
        yield f"{cancelled.stream} has no end"
    elif found[-1].how not in dialect.cancelled_as:
        yield f"frame {found[-1].frame} says {found[-1].how.value}"


def _again(dialect: Dialect, cancelled: Cancelled) -> Iterator[str]:
    require_cancel(dialect, cancelled)
    if cancelled.again.status >= 500:
        yield f"a second cancel is answered with {cancelled.again.status}"


def _refused(dialect: Dialect, answer: Exchange) -> Iterator[str]:
    if not 400 <= answer.status < 500:
        yield f"the answer is {answer.status}"


CANCELS: Final = Rule(
    "cancels",
    Group.CANCEL,
    "A run that is cancelled ends as cancelled",
    (done.CANCELLED,),
    _cancels,
)
CANCELS_AGAIN: Final = Rule(
    "cancels-again",
    Group.CANCEL,
    "A second cancel is no error of the server",
    (done.CANCELLED,),
    _again,
)
CANCELS_UNKNOWN: Final = Rule(
    "cancels-unknown",
    Group.CANCEL,
    "A cancel of a run that does not exist is refused",
    (done.UNKNOWN,),
    _refused,
)


# --- approvals


def _waits(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    seen = _whole(dialect, exchange)
    if not of(seen, What.ASK):
        yield "the stream has no question"
    end = of(seen, What.END)
    if end and end[-1].how is not How.WAITING:
        yield f"frame {end[-1].frame} says {end[-1].how.value}"
    asked = {each.id for each in of(seen, What.ASK)}
    for result in of(seen, What.RESULT):
        if result.id in asked:
            yield f"frame {result.frame} has a result before anybody has answered"


def _has(exchange: Exchange, text: str) -> bool:
    return text in exchange.content.decode(errors="replace")


def _approves(dialect: Dialect, approved: Answered) -> Iterator[str]:
    if _has(approved.asked, approved.ran):
        yield "the tool ran before anybody had answered"
    if not _has(approved.answered, approved.ran):
        yield f"the tool did not run: {approved.answered}: {approved.answered.content[-200:]!r}"


def _rejects(dialect: Dialect, rejected: Answered) -> Iterator[str]:
    answer = rejected.answered
    if _has(answer, rejected.ran):
        yield "the tool ran, although it was rejected"
    elif answer.status >= 400:
        yield f"the answer is refused with {answer.status}: {answer.content[:160]!r}"


def _decides_once(dialect: Dialect, answered: Answered) -> Iterator[str]:
    # A server may let its model talk about the result once more: only another result counts.
    if answered.again.status >= 500:
        yield f"the second answer is answered with {answered.again.status}"
    first, second = ([frame.id for frame in each.frames] for each in _both(answered))
    is_replay = first == second and None not in first
    for result in of(dialect.read(answered.again), What.RESULT):
        if answered.ran in result.text and not is_replay:
            yield f"frame {result.frame} of the second answer has a result: {result.text[:80]}"


def _both(answered: Answered) -> tuple[Exchange, Exchange]:
    return answered.answered, answered.again


def _only_answers(dialect: Dialect, forged: Forged) -> Iterator[str]:
    for name, got in forged.tries.items():
        if _has(got, forged.ran):
            yield f"{name}: the tool ran"
    if not _has(forged.proper, forged.ran):
        names = ", ".join(forged.tries)
        yield f"after {names} the proper answer runs nothing ({forged.proper}): it is lost or taken"


WAITS: Final = Rule(
    "waits", Group.APPROVALS, "A run that asks says so, and waits", (done.ASKS,), _waits
)
APPROVES: Final = Rule(
    "approves",
    Group.APPROVALS,
    "The tool runs when its user has said yes",
    (done.APPROVED,),
    _approves,
)
REJECTS: Final = Rule(
    "rejects",
    Group.APPROVALS,
    "The tool does not run when its user has said no",
    (done.REJECTED,),
    _rejects,
)
DECIDES_ONCE: Final = Rule(
    "decides-once",
    Group.APPROVALS,
    "An answer that is sent again runs nothing",
    (done.APPROVED,),
    _decides_once,
)
NO_TEXT: Final = Rule(
    "no-text",
    Group.APPROVALS,
    "No text answers a question, whatever it says",
    (done.TEXTS,),
    _only_answers,
)
NO_FORGERY: Final = Rule(
    "no-forgery",
    Group.APPROVALS,
    "No history, state or other id answers a question",
    (done.FORGERIES,),
    _only_answers,
)


# --- hostile input


def _invalid(dialect: Dialect, hostile: Hostile) -> Iterator[str]:
    for name, got in hostile.tries.items():
        if not 400 <= got.status < 500:
            yield f"{name}: the answer is {got.status or got.end.value}"


def _survives(dialect: Dialect, hostile: Hostile) -> Iterator[str]:
    if 400 <= hostile.afterwards.status < 500:
        raise NotShown(f"a proper request is refused, too: {hostile.afterwards}")
    if not of(dialect.read(hostile.afterwards), What.END):
        yield f"afterwards, a proper request gets {hostile.afterwards}"


def _big(dialect: Dialect, got: Exchange) -> Iterator[str]:
    if 400 <= got.status < 500:
        return
    if got.status != 200 or not of(dialect.read(got), What.END):
        yield f"the answer is {got}"


def _no_forged_frames(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for index, frame in enumerate(exchange.frames):
        if frame.event == "forged" or frame.id == "forged" or frame.fields.get("type") == "forged":
            yield f"frame {index} was made by the text of a message: {frame.data[:80]!r}"
    yield from _is_json(dialect, exchange)
    if not of(dialect.read(exchange), What.END):
        yield f"{exchange} has no end"


def _echoes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    text = text_of(dialect.read(exchange))
    if "forged" not in text:
        raise NotShown("the agent does not repeat its message: pass --echo")
    for part in done.FORGED_TEXTS:
        if part not in text:
            yield f"{part!r} is not in the text of the answer"


def _no_trace(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for trace in _TRACES:
        if trace in exchange.content:
            yield f"the stream has a stack trace: {trace.decode()}"


INVALID: Final = Rule(
    "invalid", Group.HOSTILE, "A body that makes no sense is refused", (done.INVALID,), _invalid
)
SURVIVES: Final = Rule(
    "survives",
    Group.HOSTILE,
    "After such bodies, the server answers as before",
    (done.INVALID,),
    _survives,
)
BIG: Final = Rule(
    "big", Group.HOSTILE, "A message of 2 MB is refused, or answered to its end", (done.BIG,), _big
)
NOWHERE: Final = Rule(
    "nowhere", Group.HOSTILE, "An agent that does not exist is refused", (done.NOWHERE,), _refused
)
NO_FORGED_FRAMES: Final = Rule(
    "no-forged-frames",
    Group.HOSTILE,
    "No text of a message becomes a frame",
    (done.ECHO,),
    _no_forged_frames,
)
ECHOES: Final = Rule(
    "echoes", Group.HOSTILE, "Any text comes through unchanged", (done.ECHO,), _echoes
)
NO_TRACE: Final = Rule(
    "no-trace", Group.HOSTILE, "A failure shows no stack trace", (done.FAILS,), _no_trace
)


# --- slow reader


def _beside(dialect: Dialect, stalled: Stalled) -> Iterator[str]:
    if not stalled.others_ended:
        if 4 * stalled.alone_s > done.MAX_STALL_S:
            alone = f"{stalled.alone_s:.0f} s with nobody beside it"
            raise NotShown(f"an answer takes {alone}: pass a --text that is answered sooner")
        yield f"while a client does not read for {done.MAX_STALL_S:g} s, others have no end"
    for got in stalled.beside:
        if not of(dialect.read(got), What.END):
            yield f"beside it, another client gets {got}"


def _reads_late(dialect: Dialect, stalled: Stalled) -> Iterator[str]:
    if not of(dialect.read(stalled.stalled), What.END):
        yield f"when it reads on, it gets {stalled.stalled} without an end"


def _reads_all(dialect: Dialect, slow: Stalled) -> Iterator[str]:
    whole, again = (text_of(dialect.read(each)) for each in slow.fast)
    if not whole or whole != again:
        raise NotShown("the agent does not say the same text twice")
    seen = dialect.read(slow.stalled)
    text = text_of(seen)
    if slow.stalled.end is End.LATE and not of(seen, What.END):
        yield f"it gets {len(text)} of {len(whole)} letters, and no end"
    elif text != whole and any(each.how is How.COMPLETED for each in of(seen, What.END)):
        yield f"it gets {len(text)} of {len(whole)} letters, and then hears of a completed run"


BESIDE: Final = Rule(
    "beside",
    Group.SLOW,
    "A client that stops reading holds up nobody else",
    (done.STALLED,),
    _beside,
)
READS_LATE: Final = Rule(
    "reads-late",
    Group.SLOW,
    "A client that reads late gets the end, too",
    (done.STALLED,),
    _reads_late,
)
READS_ALL: Final = Rule(
    "reads-all",
    Group.SLOW,
    "A client that reads slowly gets the whole text, or a stream that has not ended well",
    (done.SLOWLY,),
    _reads_all,
)


# --- two users


def _foreign(dialect: Dialect, foreign: Foreign) -> Iterator[str]:
    for name, got in foreign.tries.items():
        if not 400 <= got.status < 500 and not (got.status == 204 and not got.frames):
            yield f"another user {name}: the answer is {got.status}, {len(got.frames)} frames"


def _is_undisturbed(dialect: Dialect, foreign: Foreign) -> Iterator[str]:
    seen = dialect.read(foreign.stream)
    if not [each for each in of(seen, What.TEXT) if each.frame >= foreign.at]:
        yield f"after another user's requests, {foreign.stream} has no more text"


def _anonymous(dialect: Dialect, got: Exchange) -> Iterator[str]:
    if got.status not in (401, 403):
        yield f"the answer is {got.status}"


FOREIGN: Final = Rule(
    "foreign", Group.USERS, "Nobody else reads or cancels a user's run", (done.FOREIGN,), _foreign
)
UNDISTURBED: Final = Rule(
    "undisturbed",
    Group.USERS,
    "A run goes on, whatever others try",
    (done.FOREIGN,),
    _is_undisturbed,
)
OWN_ANSWER: Final = Rule(
    "own-answer",
    Group.USERS,
    "Nobody else answers a user's question",
    (done.ANSWERED_BY_OTHER,),
    _only_answers,
)
ANONYMOUS: Final = Rule(
    "anonymous", Group.USERS, "A start without credentials is refused", (done.NOBODY,), _anonymous
)


# --- what every client expects, whatever the documents of its protocol leave open

_IDS: Final = f"{SSE}#the-last-event-id-header"
COMMON: Final[tuple[Row, ...]] = (
    (Level.MUST, f"{SSE}#parsing-an-event-stream", IS_UTF8),
    (Level.MUST, f"{SSE}#parsing-an-event-stream", NO_FORGED_FRAMES),
    (Level.SHOULD, _IDS, IDS_ONCE),
    (Level.SHOULD, _IDS, RESUMES),
    (Level.SHOULD, _IDS, RESUMES_LIVE),
    (Level.SHOULD, _IDS, GOES_ON),
    (Level.SHOULD, _IDS, GAPS),
    (Level.SHOULD, f"{HTTP}#name-server-error-5xx", CANCELS_AGAIN),
    (Level.SHOULD, f"{HTTP}#name-404-not-found", CANCELS_UNKNOWN),
    (Level.SHOULD, f"{HTTP}#name-client-error-4xx", INVALID),
    (Level.SHOULD, f"{HTTP}#name-server-error-5xx", SURVIVES),
    (Level.SHOULD, f"{HTTP}#name-413-content-too-large", BIG),
    (Level.SHOULD, f"{_CWE}/116.html", ECHOES),
    (Level.SHOULD, f"{_CWE}/209.html", NO_TRACE),
    (Level.SHOULD, f"{_CWE}/400.html", BESIDE),
    (Level.SHOULD, f"{_CWE}/400.html", READS_LATE),
    (Level.SHOULD, f"{_CWE}/400.html", READS_ALL),
    (Level.SHOULD, f"{_CWE}/639.html", FOREIGN),
    (Level.SHOULD, f"{_CWE}/639.html", UNDISTURBED),
    (Level.SHOULD, f"{HTTP}#name-401-unauthorized", ANONYMOUS),
)
# The same for protocols in which an agent can ask.
ASKING: Final[tuple[Row, ...]] = (
    *COMMON,
    (Level.SHOULD, f"{_CWE}/294.html", DECIDES_ONCE),
    (Level.SHOULD, f"{_CWE}/863.html", NO_TEXT),
    (Level.SHOULD, f"{_CWE}/863.html", NO_FORGERY),
    (Level.SHOULD, f"{_CWE}/639.html", OWN_ANSWER),
)
