"""What agno-events.md asks of a start and of a continue, and its shape of errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from penstock.web.bodies import is_deep, require_few_values

NAME_CHARACTERS: Final = 128

# Set by us, or by the connector: a client's own would change the stream that we live on.
OURS: Final = frozenset(
    {"message", "stream", "stream_events", "background", "session_id", "user_id", "run_id"}
)
# What a message has besides its text: an agent that is no Agno agent cannot be given it.
MEDIA: Final = ("images", "audio", "videos", "input_files")
# Which field answers a pause, by the kind of what was paused. Agno takes the first alone.
ANSWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("tools", "requirements"),
    "team": ("requirements",),
    "workflow": ("step_requirements",),
}


class InvalidRequest(ValueError):
    """The body cannot be served: 422. `errors` are as FastAPI writes them."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(str(each["msg"]) for each in errors))
        self.errors = errors


class BrokenAnswers(ValueError):
    """The list of answers is no JSON list of objects: 400, as in Agno."""


def error(type: str, loc: Sequence[str | int], msg: str, input: Any = None) -> dict[str, Any]:
    """One of FastAPI's errors; `loc` is where in the body. Only a short input is said back."""
    said = named(input) if isinstance(input, str) else None
    return {"type": type, "loc": ["body", *loc], "msg": msg, "input": said}


def named(name: str) -> str:
    """A client's own word, of a length that can be said back."""
    return name[:NAME_CHARACTERS]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be only white space")
    return text


def _absent(text: Any) -> Any:
    """FastAPI takes an empty field for one that is not there; so does JSON's sender."""
    return None if text == "" else text


Name = Annotated[
    Annotated[str, Field(max_length=512)] | None, BeforeValidator(_absent), Field(default=None)
]


class RunRequest(BaseModel):
    """The body of a start. Whatever else there is goes on to an Agno upstream."""

    model_config = ConfigDict(extra="allow")

    message: Annotated[str, Field(min_length=1), AfterValidator(_not_blank)]
    stream: bool = False
    background: bool = False  # every run goes on by itself; without a stream: answered at once
    session_id: Name
    user_id: Name

    def forwarded(self) -> dict[str, Any]:
        """The fields that are Agno's own matter; dependencies that are no JSON object are not."""
        given = {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in OURS and value is not None
        }
        if not _is_object(given.get("dependencies")):
            given.pop("dependencies", None)
        return given


class ContinueRequest(BaseModel):
    """The body of a continue; its list of answers is found by `answers_of`."""

    model_config = ConfigDict(extra="allow")

    stream: bool = False
    session_id: Name
    user_id: Name


Model = TypeVar("Model", bound=BaseModel)


def parse(fields: Mapping[str, Any], model: type[Model]) -> Model:
    """Raises InvalidRequest that names the fields."""
    given = dict(fields)
    _require_flat(given, ())
    if given.get("message") == "":
        del given["message"]  # an empty one is missing, as FastAPI sees it
    try:
        return model.model_validate(given)
    except ValidationError as cause:
        raise InvalidRequest(
            [
                error(
                    each["type"],
                    each["loc"],
                    each["msg"],
                    # FastAPI says of what is missing that it is null
                    None if each["type"] == "missing" else each["input"],
                )
                for each in cause.errors(include_url=False, include_context=False)
            ]
        ) from cause


def require_portable(request: RunRequest) -> None:
    """Raises InvalidRequest for what only an Agno agent can be given: it would be lost."""
    given = request.forwarded()
    errors = [
        error("not_portable", (name,), f"an agent that is no Agno agent takes no {name}")
        for name in MEDIA
        if given.get(name) not in (None, "", "[]", [])
    ]
    if errors:
        raise InvalidRequest(errors)


def answers_of(request: ContinueRequest, kind: str) -> tuple[str, list[dict[str, Any]]]:
    """The field that answers the pause, and its objects.

    Raises InvalidRequest where there is none, or two; BrokenAnswers where it cannot be read.
    """
    extra = request.model_extra or {}
    known = ANSWERS[kind]
    given = [name for name in known if extra.get(name) not in (None, "")]
    if not given:
        raise InvalidRequest([error("missing", (known[0],), "Field required")])
    if len(given) > 1:
        text = f"comes without {', '.join(given[1:])}"
        raise InvalidRequest([error("both_given", (given[0],), text)])
    name = given[0]
    value = extra[name]
    if isinstance(value, str):
        require_few_values(value)
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as cause:
            raise BrokenAnswers(f"Invalid JSON in {name} field") from cause
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BrokenAnswers(f"Invalid structure in {name} field: a list of objects is expected")
    _require_flat(value, (name,))
    return name, value


def _require_flat(value: Any, loc: Sequence[str]) -> None:
    if is_deep(value):
        raise InvalidRequest([error("too_deep", loc, "is nested too deeply")])


def _is_object(given: Any) -> bool:
    if not isinstance(given, str):
        return isinstance(given, dict)
    require_few_values(given)
    try:
        return isinstance(orjson.loads(given), dict)
    except orjson.JSONDecodeError:
        return False
