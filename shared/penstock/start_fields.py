"""Checks the fields that a start may pass to an agent server besides the message.

All surfaces use this module.

The edge checks a start before it sends the command, so that the client gets a 422 that names the
field. The connector checks the start again before it makes the request, because the connector
handles the commands of all surfaces. A start never passes a field that could answer a pause,
because only a decision may continue a run.

`accepts` is a setting of each agent. The setting lists further fields that the agent server may
get, such as `dependencies`, `stateDelta`, `stateDelta.app:theme` or `forwardedProps.locale`. Pure.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

JsonObject = dict[str, Any]
Where = tuple[str | int, ...]

SHOWN_CHARACTERS: Final = 128
MAX_TAGS: Final = 16
_TAG_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
_TAG_VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}")


def _checked_tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MAX_TAGS:
        raise ValueError(f"a run has at most {MAX_TAGS} tags")
    for key, value in tags.items():
        if not _TAG_KEY.fullmatch(key):
            raise ValueError(
                f"the key of a tag begins with a letter or digit, and has at most 64 letters, "
                f"digits and ._/-; {key[:SHOWN_CHARACTERS]!r} does not"
            )
        if not _TAG_VALUE.fullmatch(value):
            raise ValueError(
                f"{key}: the value of a tag has 1 to 128 characters, none of which is a control "
                "character"
            )
    return tags


# What a caller says about a run, by which lists of runs are filtered.
Tags = Annotated[
    dict[str, str],
    AfterValidator(_checked_tags),
    Field(
        description="What the caller says about the run: events and lists have it, and lists are "
        "filtered by it. At most 16 tags, which a workflow's steps inherit. A key begins with a "
        "letter or digit and has at most 64 letters, digits and `._/-`; a value has 1 to 128 "
        "characters, none of which is a control character.",
        json_schema_extra={"maxProperties": MAX_TAGS},
    ),
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that a start may not pass, with its path and the reason of the refusal."""

    where: Where
    text: str


class NotAccepted(ValueError):
    """The error for a start with fields that it may not pass. The text names each such field."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(f"{_dotted(each.where)}: {each.text}" for each in refusals))
        self.refusals = list(refusals)


def folded_name(name: str) -> str:
    """Return the name without case and separators: `Forwarded-Props` becomes `forwardedprops`."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in plain if letter.isalnum())


# The folded names of fields that answer a pause at an agent server. No setting can allow these
# fields.
ANSWERS: Final = frozenset({"resume", "command"})
_ANSWERS_OF: Final[Mapping[str, frozenset[str]]] = {
    "agui": ANSWERS,
    # `invocationid` continues an invocation. `functioncalleventid` continues a call within an
    # invocation.
    "adk": ANSWERS | {"invocationid", "functioncalleventid"},
    "agno": ANSWERS | {"requirements", "steprequirements", "updatedtools", "runresponse"},
}
# The folded names of fields with data of users and apps. No agent server looks for an answer in
# these fields, so the check for answers skips their content.
_DATA: Final = frozenset(
    {"messages", "newmessage", "message", "state", "statedelta", "tools", "context", "dependencies"}
)


def refuse_answers(document: Any) -> None:
    """Raise NotAccepted if a field could answer a pause, in the document of a surface that passes
    no fields to the agent server."""
    if found := [Refusal(where, _ANSWER) for where in _answers(document, ANSWERS)]:
        raise NotAccepted(found)


def accepted_input(
    protocol: str, accepts: Sequence[str], given: Mapping[str, Any] | None
) -> JsonObject:
    """Return the `input` of a start that is sent to the agent server.

    Unknown fields that are empty are removed.

    A workflow takes every field, because its input is later checked against the schema of its
    definition.

    Raises:
        NotAccepted: the input has a field that the start may not pass.
    """
    if protocol == "workflow":
        return dict(given or {})
    return _accepted(_INPUT[protocol], _Setting(protocol, frozenset(accepts)), given or {})


def check_body(protocol: str, accepts: Sequence[str], body: bytes | str) -> None:
    """Check whether a client's request body, in the agent server's own format, may be sent
    unchanged.

    An object that contains a name twice is refused, because the agent server might use the value
    that Penstock has not checked.

    Raises:
        NotAccepted: the body is not JSON, or has a field that the start may not pass.
    """

    def once(pairs: list[tuple[str, Any]]) -> JsonObject:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise NotAccepted([Refusal((twice,), "stands twice in one object")])
        return found

    try:
        document = json.loads(body, object_pairs_hook=once)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAccepted([Refusal((), f"cannot be read as JSON: {error}")]) from error
    _accepted(_BODY[protocol], _Setting(protocol, frozenset(accepts)), document)


def accepted_session(accepts: Sequence[str], given: Mapping[str, Any]) -> JsonObject:
    """Return the fields with which an ADK session may be created, besides its id. Raises
    NotAccepted."""
    return _accepted(_SESSION, _Setting("adk", frozenset(accepts)), given)


def check_setting(protocol: str, accepts: Sequence[str]) -> None:
    """Raise ValueError if an agent's setting `accepts` allows an answer to a pause, or a field that
    Penstock sets itself."""
    for name in accepts:
        first, _, rest = name.partition(".")
        parts = [first] if folded_name(first) in _DATA else [first, *rest.split(".")]
        if any(folded_name(part) in _ANSWERS_OF[protocol] for part in parts):
            raise ValueError(f"accepts: {name} could answer a pause; only a decision may")
        if folded_name(first) in _OURS[protocol]:
            raise ValueError(f"accepts: {name} is set by Penstock for every run")
        if first == "forwardedProps" and not rest:
            raise ValueError("accepts: name the keys, as in forwardedProps.locale")


# --- the table


_ANSWER: Final = "could answer a pause; a run that waits goes on by a decision alone"
_OURS: Final[Mapping[str, frozenset[str]]] = {
    "agui": frozenset({"threadid", "runid"}),
    "adk": frozenset({"appname", "userid", "sessionid", "newmessage", "streaming"}),
    "agno": frozenset(
        {
            *("message", "stream", "streamevents", "background"),
            *("sessionid", "userid", "runid"),
        }
    ),
}


@dataclass(frozen=True, slots=True)
class _Setting:
    """The protocol of the agent, and its setting `accepts`."""

    protocol: str
    accepts: frozenset[str]

    def has(self, *path: str) -> bool:
        """Return whether the setting accepts the field at `path`. For ADK, the spelling of the
        field may be either of the two."""
        names = {".".join(path)}
        if self.protocol == "adk":
            names |= {".".join((spelled, *path[1:])) for spelled in _spellings(path[0])}
        return not names.isdisjoint(self.accepts)


Check = Callable[[_Setting, Where, Any], Iterator[Refusal]]


def _anything(setting: _Setting, where: Where, value: Any) -> Iterator[Refusal]:
    return iter(())


def _empty_answers(setting: _Setting, where: Where, value: Any) -> Iterator[Refusal]:
    """Allow an empty `resume`. An empty `resume` answers nothing, and some clients always send
    one."""
    if value:
        yield Refusal(where, _ANSWER)


def _forwarded(setting: _Setting, where: Where, value: Any) -> Iterator[Refusal]:
    """Check that AG-UI's forwardedProps have only keys that `accepts` names, and no answer at any
    depth."""
    if not isinstance(value, dict):
        if value not in (None, "", []):
            yield Refusal(where, "must be an object")
        return
    yield from _doubled(where, value)
    for name, each in value.items():
        answers = list(_answers({name: each}, _ANSWERS_OF["agui"], data=frozenset()))
        yield from (Refusal((*where, *found), _ANSWER) for found in answers)
        if not answers and each is not None and not setting.has("forwardedProps", name):
            yield Refusal((*where, name), _unnamed(f"forwardedProps.{name}"))


_ROLES: Final = frozenset(
    {"user", "assistant", "system", "developer", "tool", "activity", "reasoning"}
)
_ONLY_SHOWN: Final = frozenset({"activity", "reasoning"})


def _conversation(setting: _Setting, where: Where, value: Any) -> Iterator[Refusal]:
    """Check AG-UI's messages. With Agno, a tool result at the end would answer a pause."""
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        yield Refusal(where, "must be a list of objects")
        return
    last: tuple[int, JsonObject] | None = None
    for index, message in enumerate(value):
        yield from _doubled((*where, index), message)
        role = message.get("role")
        if role not in _ROLES:
            yield Refusal((*where, index, "role"), f"must be one of {', '.join(sorted(_ROLES))}")
        elif role not in _ONLY_SHOWN:
            last = (index, message)
    if last is None:
        return
    index, message = last
    if message.get("role") == "tool":
        text = "a new run cannot begin with a tool's result: nothing of this thread waits for it"
        yield Refusal((*where, index), text)
    elif message.get("toolCalls") or message.get("tool_calls"):
        text = "a new run cannot begin with tool calls that nobody has answered"
        yield Refusal((*where, index, "toolCalls"), text)


_PARTS: Final = frozenset({"text", "inlineData", "videoMetadata", "mediaResolution"})


def _content(setting: _Setting, where: Where, value: Any) -> Iterator[Refusal]:
    """Check that ADK's newMessage has only parts that a user may write, and neither calls nor
    results of calls."""
    if not isinstance(value, dict):
        yield Refusal(where, "must be an object")
        return
    if value.get("role") not in (None, "user"):
        yield Refusal((*where, "role"), "must be user")
    for name in value.keys() - {"role", "parts"}:
        if value[name] is not None:
            yield Refusal((*where, name), "is no field of a message")
    parts = value.get("parts")
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        at = (*where, "parts", index)
        if not isinstance(part, dict):
            yield Refusal(at, "must be an object")
            continue
        yield from _doubled(at, part)
        for name, each in part.items():
            kind = _camel(name)
            if each is None or kind in _PARTS:
                continue
            if kind in ("functionResponse", "functionCall"):
                text = "calls and their results come from the agent; a pause is answered by its ids"
                yield Refusal((*at, name), text)
            elif not setting.has(f"newMessage.parts.{kind}"):
                yield Refusal((*at, name), _unnamed(f"newMessage.parts.{kind}"))


# The prefixes of shared keys in ADK's state. All users of an app share the keys with `app:`, and
# all sessions of a user share the keys with `user:`.
_SHARED: Final = ("app:", "user:")


def _state(name: str, *, own: bool) -> Check:
    """Return the check for ADK's state, which has keys of the session and shared keys (`_SHARED`).

    It accepts keys of the session if `own` is true, or if `accepts` has `name`; and a shared key if
    `accepts` names it, or all keys with its prefix (such as `stateDelta.app:*`).
    """

    def check(setting: _Setting, where: Where, value: Any) -> Iterator[Refusal]:
        if not value:
            return
        if not isinstance(value, dict):
            yield Refusal(where, "must be an object")
            return
        for key in value:
            prefix = next((each for each in _SHARED if _reads_as(key, each)), None)
            if prefix is None:
                if not (own or setting.has(name)):
                    yield Refusal(where, _unnamed(name))
                    return
            elif not (setting.has(name, key) or setting.has(name, f"{prefix}*")):
                yield Refusal((*where, key), _unnamed(f"{name}.{key[:SHOWN_CHARACTERS]}"))

    return check


def _reads_as(key: str, prefix: str) -> bool:
    return unicodedata.normalize("NFKC", key).strip().casefold().startswith(prefix)


@dataclass(frozen=True, slots=True)
class _Table:
    """The known fields of a document, with the check for each field."""

    fields: Mapping[str, Check]
    both_spellings: bool = False  # whether fields may be in snake_case as well as camelCase

    def check(self, name: str) -> Check | None:
        return self.fields.get(_camel(name) if self.both_spellings else name)


_CONVERSATION: Final[Mapping[str, Check]] = {
    "messages": _conversation,
    "state": _anything,
    "tools": _anything,
    "context": _anything,
    "forwardedProps": _forwarded,
    "protocolVersion": _anything,
    "resume": _empty_answers,
}
_STATE: Final[Mapping[str, Check]] = {"stateDelta": _state("stateDelta", own=False)}

# Maps a protocol to the fields that a body in the agent server's own format may have.
_BODY: Final[Mapping[str, _Table]] = {
    "agui": _Table(
        {
            **_CONVERSATION,
            **dict.fromkeys(("threadId", "runId", "parentRunId"), _anything),
        }
    ),
    "adk": _Table(
        {
            **_STATE,
            **dict.fromkeys(("appName", "userId", "sessionId", "streaming"), _anything),
            "newMessage": _content,
        },
        both_spellings=True,
    ),
    "agno": _Table({}),  # clients start runs of Agno agents with a form of Penstock
}
# Maps a protocol to the fields that the `input` of a start may have besides the message.
_INPUT: Final[Mapping[str, _Table]] = {
    "agui": _Table(_CONVERSATION),
    "adk": _Table(_STATE, both_spellings=True),
    "agno": _Table({}),
}
# The fields that a new ADK session may have. Any key of the session's own state is accepted,
# because no other session reads these keys.
_SESSION: Final = _Table({"state": _state("state", own=True)}, both_spellings=True)


# The empty values that forms and some clients send.
_NOTHING: Final[Sequence[Any]] = (None, "", "[]", "{}", [], {})


def _accepted(table: _Table, setting: _Setting, given: Any) -> JsonObject:
    if not isinstance(given, Mapping):
        raise NotAccepted([Refusal((), "must be an object")])
    refusals = list(_doubled((), given))
    passed: JsonObject = {}
    for name, value in given.items():
        check = table.check(name)
        found: list[Refusal] = []
        if check is not None:
            found = list(check(setting, (name,), value))
        elif value in _NOTHING:
            continue
        elif folded_name(name) in _ANSWERS_OF[setting.protocol]:
            found = [Refusal((name,), _ANSWER)]
        elif folded_name(name) in _OURS[setting.protocol]:
            found = [Refusal((name,), "is set by Penstock for every run")]
        elif not setting.has(name):
            found = [Refusal((name,), _unnamed(name))]
        elif setting.protocol == "agui":
            inside = _answers({name: value}, ANSWERS, data=frozenset())
            found = [Refusal(where, _ANSWER) for where in inside]
        refusals += found
        passed[name] = value
    if refusals:
        raise NotAccepted(refusals)
    return passed


def _unnamed(name: str) -> str:
    return (
        "is not passed on: the agent's configuration does not name it; "
        f"whoever runs Penstock can add {name[:SHOWN_CHARACTERS]} to the agent's `accepts`"
    )


def _doubled(where: Where, given: Mapping[str, Any]) -> Iterator[Refusal]:
    """Refuse a name in two spellings, because Penstock and the agent server might read different
    ones."""
    first: dict[str, str] = {}
    for name in given:
        other = first.setdefault(folded_name(name), name)
        if other != name:
            yield Refusal((*where, name), f"is given twice: {other[:SHOWN_CHARACTERS]} is it, too")


def _answers(document: Any, names: frozenset[str], data: frozenset[str] = _DATA) -> Iterator[Where]:
    """Yield the paths of fields that could answer a pause, except inside fields with only data."""
    open_: list[tuple[Where, Any]] = [((), document)]
    while open_:
        where, value = open_.pop()
        if isinstance(value, dict):
            for name, each in value.items():
                if folded_name(name) in names and each not in (None, [], {}):
                    yield (*where, name)
                if folded_name(name) not in data:
                    open_.append(((*where, name), each))
        elif isinstance(value, list):
            open_.extend(((*where, index), each) for index, each in enumerate(value))


def _spellings(name: str) -> set[str]:
    return {_camel(name), re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in rest)


def _dotted(where: Where) -> str:
    return ".".join(str(each)[:SHOWN_CHARACTERS] for each in where) or "input"
