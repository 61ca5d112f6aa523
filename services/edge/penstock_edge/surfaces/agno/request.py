"""Models of the request bodies in agno-events.md: to start a run, and to continue a paused run.

Errors have FastAPI's form. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from penstock.web.bodies import is_deep, require_few_values
from penstock.web.problems import Problem
from penstock_edge.surfaces.bodies import not_blank
from penstock_edge.surfaces.errors import InvalidBody, body_error, shortened

JsonObject = dict[str, Any]

# Fields that the edge or the connector sets. If a client's values of these fields reached the agent
# server, the agent server could send a stream that the connector cannot read.
RESERVED: Final = frozenset(
    {"message", "stream", "stream_events", "background", "session_id", "user_id", "run_id"}
)
MAX_INDEX: Final = 2**53  # the greatest number that every client of JSON can read
# The fields with the media of a message. Only Agno agents accept media.
MEDIA: Final = ("images", "audio", "videos", "input_files")
# Maps the agent's kind to the fields that may answer a pause. Agno itself reads only the first
# field of each kind.
ANSWER_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("tools", "requirements"),
    "team": ("requirements",),
    "workflow": ("step_requirements",),
}
KINDS: Final = tuple(ANSWER_FIELDS)


def error(type: str, loc: Sequence[str | int], msg: str, input: Any = None) -> JsonObject:
    """Show only the beginning of an `input` that is a text, and null for any other."""
    shown = shortened(input) if isinstance(input, str) else None
    return {**body_error(type, loc, msg), "input": shown}


def _absent(text: Any) -> Any:
    """FastAPI treats an empty field of a form as missing."""
    return None if text == "" else text


Name = Annotated[
    Annotated[str, Field(max_length=512)] | None, BeforeValidator(_absent), Field(default=None)
]


class RunRequest(BaseModel):
    """The body of a request that starts a run. An Agno server also gets fields that are not
    declared here; the edge refuses those that the agent does not accept."""

    model_config = ConfigDict(extra="allow")

    message: Annotated[str, Field(min_length=1), AfterValidator(not_blank)]
    stream: bool = False
    # If `background` is true and `stream` is false, the response does not wait for the end of the
    # run. If `stream` is true, `background` has no effect, because every run continues after its
    # client has left.
    background: bool = False
    session_id: Name
    user_id: Name

    @property
    def returns_at_once(self) -> bool:
        return self.background and not self.stream

    def forwarded(self) -> JsonObject:
        """Return the client's other fields that have a value. Agno ignores `dependencies` that are
        no object."""
        given = {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in RESERVED and value is not None
        }
        if not _is_object(given.get("dependencies")):
            given.pop("dependencies", None)
        return given


class SessionRequest(BaseModel):
    """The body of a request that creates a session, with the fields of Agno's clients."""

    model_config = ConfigDict(extra="forbid")

    session_id: Name
    user_id: Name
    agent_id: Name
    team_id: Name
    workflow_id: Name
    session_name: str | None = None
    session_state: JsonObject | None = None
    metadata: JsonObject | None = None


class ResumeRequest(BaseModel):
    """The body of a request that reads a run's stream again, after the event with this number."""

    model_config = ConfigDict(extra="ignore")

    last_event_index: Annotated[
        Annotated[int, Field(ge=-1, le=MAX_INDEX)] | None, BeforeValidator(_absent)
    ] = None
    session_id: Name


class ContinueRequest(BaseModel):
    """The body of a request that answers a pause. The answers are a list in a further field:
    `tools`, `requirements` or `step_requirements`."""

    model_config = ConfigDict(extra="allow")

    stream: bool = False
    session_id: Name
    user_id: Name


Model = TypeVar("Model", bound=BaseModel)


def parse(fields: Mapping[str, Any], model: type[Model]) -> Model:
    given = dict(fields)
    _require_flat(given, ())
    if given.get("message") == "":
        del given["message"]  # FastAPI treats an empty field as missing
    try:
        return model.model_validate(given)
    except ValidationError as cause:
        raise InvalidBody(
            error(
                each["type"],
                each["loc"],
                each["msg"],
                # FastAPI's error for a missing field has null as its input.
                None if each["type"] == "missing" else each["input"],
            )
            for each in cause.errors(include_url=False, include_context=False)
        ) from cause


def require_portable(request: RunRequest) -> None:
    given = request.forwarded()
    errors = [
        error("not_portable", (name,), f"an agent that is no Agno agent takes no {name}")
        for name in MEDIA
        if given.get(name) not in (None, "", "[]", [])
    ]
    if errors:
        raise InvalidBody(errors)


def answers_of(request: ContinueRequest, kind: str) -> tuple[str, list[JsonObject]]:
    """Return the name of the field that answers the pause, and its list of objects. `kind` is the
    agent's kind. As in Agno, a field that is not a JSON list of objects is 400."""
    extra = request.model_extra or {}
    fields = ANSWER_FIELDS[kind]
    given = [name for name in fields if extra.get(name) not in (None, "")]
    if not given:
        raise InvalidBody([error("missing", (fields[0],), "Field required")])
    if len(given) > 1:
        text = f"comes without {', '.join(given[1:])}"
        raise InvalidBody([error("both_given", (given[0],), text)])
    name = given[0]
    value = extra[name]
    if isinstance(value, str):
        require_few_values(value)
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as cause:
            raise Problem(400, f"Invalid JSON in {name} field") from cause
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise Problem(400, f"Invalid structure in {name} field: a list of objects is expected")
    _require_flat(value, (name,))
    return name, value


def _require_flat(value: Any, loc: Sequence[str]) -> None:
    if is_deep(value):
        raise InvalidBody([error("too_deep", loc, "is nested too deeply")])


def _is_object(given: Any) -> bool:
    if not isinstance(given, str):
        return isinstance(given, dict)
    require_few_values(given)
    try:
        return isinstance(orjson.loads(given), dict)
    except orjson.JSONDecodeError:
        return False
