"""Faults that are planted in what was recorded of a real server. Each is pure.

`changes_of` has, for a protocol, a fault by the name of each rule that must find it. A fault
changes the record of one scenario; it also gets the records of all, by the names of the scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock_conformance.dialect import Dialect, What
from penstock_conformance.exchange import End, Exchange, Frame, parsed

RAN = "doc-123"  # only the result of the tool that asks has these letters

Records = Mapping[str, Any]
Change = Callable[[Dialect, Any, Records], Any]
OfFrames = Callable[[Sequence[Frame]], Iterable[Frame]]


# --- changes of streams


def _with(exchange: Exchange, frames: Iterable[Frame], **changes: Any) -> Exchange:
    return replace(exchange, frames=tuple(frames), **changes)


def _seen_at(dialect: Dialect, exchange: Exchange, *what: What) -> set[int]:
    return {each.frame for each in dialect.read(exchange) if each.what in what}


def _split(dialect: Dialect, exchange: Exchange, *what: What) -> tuple[list[Frame], list[Frame]]:
    """Return the frames that say this, and the others."""
    at = _seen_at(dialect, exchange, *what)
    assert at, f"{exchange} has nothing of {what}"
    numbered = list(enumerate(exchange.frames))
    return [each for n, each in numbered if n in at], [each for n, each in numbered if n not in at]


def of_frames(change: OfFrames) -> Change:
    return lambda dialect, exchange, records: _with(exchange, change(exchange.frames))


def without(*what: What) -> Change:
    return lambda dialect, exchange, records: _with(exchange, _split(dialect, exchange, *what)[1])


def doubled(what: What) -> Change:
    def change(dialect: Dialect, exchange: Exchange, records: Records) -> Exchange:
        at = _seen_at(dialect, exchange, what)
        if not at:  # no stream has calls but that of tools
            return exchange
        return _with(
            exchange,
            (each for n, frame in enumerate(exchange.frames) for each in [frame] * (1 + (n in at))),
        )

    return change


def ends_as(name: str) -> Change:
    """End as the stream of this other scenario does."""

    def change(dialect: Dialect, exchange: Exchange, records: Records) -> Exchange:
        other, _ = _split(dialect, records[name], What.END)
        at = _seen_at(dialect, exchange, What.END, What.ASK)
        others = [each for n, each in enumerate(exchange.frames) if n not in at]
        return _with(exchange, [*others, *other])

    return change


def _calls_last(dialect: Dialect, exchange: Exchange, records: Records) -> Exchange:
    calls, others = _split(dialect, exchange, What.CALL)
    return _with(exchange, [*others, *calls])


def fields(change: Callable[[dict[str, Any]], Any], kind: str = "") -> Change:
    """Change the data of the frames of this type or name in place."""

    def changed(frames: Sequence[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if not frame.fields or not _is_of(kind, frame):
                yield frame
                continue
            value = json.loads(json.dumps(frame.value))
            change(value)
            yield replace(frame, value=value, data=json.dumps(value))

    return of_frames(changed)


def _is_of(kind: str, frame: Frame) -> bool:
    return not kind or kind in (frame.event, frame.fields.get("type")) or kind in frame.fields


def dropped(kind: str) -> Change:
    """Drop the first frame of this type or name."""

    def changed(frames: Sequence[Frame]) -> list[Frame]:
        at = next((n for n, frame in enumerate(frames) if _is_of(kind, frame)), len(frames))
        return [*frames[:at], *frames[at + 1 :]]

    return of_frames(changed)


def all_frames(**changes: Any) -> Change:
    return of_frames(lambda frames: (replace(frame, **changes) for frame in frames))


def answer(**changes: Any) -> Change:
    return lambda dialect, found, records: replace(found, **changes)


def adds(text: bytes) -> Change:
    return lambda dialect, found, records: replace(found, content=found.content + text)


def without_header(name: str) -> Change:
    def change(dialect: Dialect, found: Exchange, records: Records) -> Exchange:
        kept = {key: value for key, value in found.headers.items() if key != name}
        return replace(found, headers=kept)

    return change


def _no_line_separator(frames: Sequence[Frame]) -> Iterator[Frame]:
    for frame in frames:
        data = frame.data.replace("\u2028", " ").replace("\\u2028", " ")
        yield replace(frame, data=data, value=parsed(data))


# --- changes of a part of a record


def part(name: str, change: Change) -> Change:
    """Change a field of the record, which is an exchange."""

    def changed(dialect: Dialect, record: Any, records: Records) -> Any:
        return replace(record, **{name: change(dialect, getattr(record, name), records)})

    return changed


def each_of(name: str, change: Change) -> Change:
    """Change each exchange of a field of the record."""

    def changed(dialect: Dialect, record: Any, records: Records) -> Any:
        found = {key: change(dialect, one, records) for key, one in getattr(record, name).items()}
        return replace(record, **{name: found})

    return changed


def _first_lost(frames: Sequence[Frame]) -> Sequence[Frame]:
    return frames[1:]


def _event_lost(dialect: Dialect, rest: Exchange, records: Records) -> Exchange:
    # Notes of the server about the stream come before the events.
    lost = next((frame for frame in rest.frames if dialect.is_of_run(frame)), None)
    return _with(rest, [frame for frame in rest.frames if frame is not lost])


def _stops_early(dialect: Dialect, rest: Exchange, records: Records) -> Exchange:
    return _with(rest, rest.frames[: min(_seen_at(dialect, rest, What.TEXT)) + 1])


def _from_the_second(dialect: Dialect, cursors: Any, records: Records) -> Any:
    answer = replace(cursors.whole, frames=cursors.whole.frames[1:])
    return replace(cursors, tries=dict.fromkeys(cursors.tries, answer))


def _runs_again(dialect: Dialect, answered: Any, records: Records) -> Any:
    frames = [replace(frame, id=None) for frame in answered.answered.frames]
    return replace(answered, again=_with(answered.answered, frames))


def _disturbed(dialect: Dialect, foreign: Any, records: Records) -> Any:
    return replace(foreign, stream=_with(foreign.stream, foreign.stream.frames[: foreign.at]))


def _loses_a_text(dialect: Dialect, found: Exchange, records: Records) -> Exchange:
    # A whole text may come again at the end of a stream.
    at = min(_seen_at(dialect, found, What.TEXT))
    return _with(found, [frame for n, frame in enumerate(found.frames) if n != at])


def _never_ends(dialect: Dialect, found: Exchange, records: Records) -> Any:
    return replace(without(What.END)(dialect, found, records), end=End.LATE)


def after(*changes: Change) -> Change:
    """Make one change after the other."""

    def change(dialect: Dialect, record: Any, records: Records) -> Any:
        for each_change in changes:
            record = each_change(dialect, record, records)
        return record

    return change


_TAKEN = each_of("tries", adds(RAN.encode()))
COMMON: Mapping[str, Change] = {
    "is-stream": answer(headers={"content-type": "text/plain"}),
    "is-json": all_frames(data="{", value=None),
    "is-utf8": adds(b"\xff"),
    "begins": without(What.BEGIN),
    "calls-first": _calls_last,
    "ends-once": doubled(What.END),
    "closes": answer(end=End.CUT),
    "completes": ends_as("fails"),
    "fails": ends_as("text"),
    "once": doubled(What.CALL),
    "ids-once": all_frames(id="7-0"),
    "resumes": each_of("rests", _event_lost),
    "resumes-live": part("rest", _event_lost),
    "goes-on": part("rest", _stops_early),
    "gaps": _from_the_second,
    "cancels": part("stream", ends_as("text")),
    "cancels-again": part("again", answer(status=500)),
    "cancels-unknown": answer(status=200),
    "waits": ends_as("text"),
    "approves": part("answered", answer(content=b"")),
    "rejects": part("answered", adds(RAN.encode())),
    "decides-once": _runs_again,
    "no-text": _TAKEN,
    "no-forgery": _TAKEN,
    "own-answer": _TAKEN,
    "invalid": each_of("tries", answer(status=200)),
    "survives": part("afterwards", answer(status=502, frames=())),
    "big": answer(status=500),
    "nowhere": answer(status=200),
    "no-forged-frames": all_frames(event="forged"),
    "echoes": of_frames(_no_line_separator),
    "no-trace": adds(b"Traceback (most recent call last):"),
    "beside": answer(others_ended=False, alone_s=0.0),
    "reads-late": part("stalled", _never_ends),
    "reads-all": part("stalled", _loses_a_text),
    "foreign": each_of("tries", answer(status=200)),
    "undisturbed": _disturbed,
    "anonymous": answer(status=200),
}


def _other_task(value: dict[str, Any]) -> None:
    value["statusUpdate"]["taskId"] = "another"


# The rules that a protocol has alone, or in its own words.
OWN: Mapping[str, Mapping[str, Change]] = {
    "agui": {
        "lines": adds(b"\r"),
        "shapes": fields(lambda event: event.update(parentRunId=None), "RUN_STARTED"),
        "ids": fields(lambda event: event.update(runId="another"), "RUN_STARTED"),
        "spans": dropped("TEXT_MESSAGE_END"),
    },
    "vercel": {
        "fails": after(dropped("error"), ends_as("text")),
        "header": without_header("x-vercel-ai-ui-message-stream"),
        "done": of_frames(lambda frames: frames[:-1]),
        "shapes": fields(lambda chunk: chunk.pop("id"), "text-delta"),
        "parts": dropped("text-end"),
    },
    "openai": {
        "fails": after(dropped("error"), ends_as("text")),
        "shapes": all_frames(event=None),
        "numbers": of_frames(_first_lost),
        "items": dropped("response.output_item.done"),
        "texts": dropped("response.output_text.delta"),
        "cancels": after(*(part(each, answer(content=b"{}")) for each in ("cancel", "again"))),
    },
    "agno": {"shapes": fields(lambda event: event.pop("run_id", None))},
    "adk": {"shapes": fields(lambda event: event.pop("author", None))},
    "a2a": {
        "shapes": fields(lambda response: response.update(message={})),
        "one-task": fields(_other_task, "statusUpdate"),
        "appended": dropped("artifactUpdate"),
        "closes-asking": answer(end=End.LATE),
        "subscribes": fields(lambda response: response.update(message=response.pop("task", {}))),
        "subscribes-late": answer(status=200),
    },
    "executions": {
        "shapes": fields(lambda event: event.pop("source")),
        "one-run": of_frames(
            lambda frames: [
                *frames[:-1],
                replace(frames[-1], value={**frames[-1].fields, "run_id": "another"}),
            ]
        ),
        "numbers": of_frames(_first_lost),
        "summary": fields(lambda event: event["data"].pop("summary"), "lifecycle.completed"),
    },
    "unified": {
        "shapes": fields(lambda event: event.pop("timestamp")),
        "event-ids": doubled(What.BEGIN),
        "messages": dropped("agent_message_start"),
    },
}


def changes_of(protocol: str) -> Mapping[str, Change]:
    return {**COMMON, **OWN[protocol]}
