"""Defines the parts that several documents have: names, patterns, durations, deciders. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from penstock.durations import seconds_of
from penstock.web.auth.grants import Permission


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def seconds(value: Any) -> Any:
    """Return the seconds of a text such as `30m`; return any other value as it is."""
    return seconds_of(value) if isinstance(value, str) else value


Name = Annotated[str, Field(min_length=1, max_length=256)]
# One text stands for a list with this text.
Listed = BeforeValidator(_listed, json_schema_input_type=str | list[str])
Names = Annotated[list[Name], Listed, Field(min_length=1, max_length=1000)]
# the seconds of a text such as `30m`, or a number of seconds
Duration = Annotated[
    int,
    BeforeValidator(seconds, json_schema_input_type=int | str),
    Field(strict=True, ge=1, le=366 * 86400),
]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Version = Annotated[int, Field(strict=True, ge=1, le=2**53)]


class Strict(BaseModel):
    """The base of all parts of a document. An unknown field is an error, because a rule with a
    misspelt field would otherwise have no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DecidersOf(Strict):
    """The people who may decide.

    A person needs the scope. If the lists are not empty, the person also needs one of the roles or
    one of the names.
    """

    scope: Permission = Field("decide", description="The scope that a decider needs.")
    roles: list[Name] = Field([], description="A decider has one of these roles ...")
    users: list[Name] = Field(
        [], description="... or one of these names; `requester` is the user whose run asks."
    )
    excluded: list[Name] = Field(
        [], alias="not", description="Who may not decide, such as `requester`."
    )


class StartedRun(Protocol):
    """The facts of a run by which rules choose runs; `tenant` is empty without one."""

    @property
    def agent(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def roles(self) -> Sequence[str]: ...


class RunMatch(Strict):
    """The runs to which a rule or budget applies, by patterns in which `*` stands for any text."""

    agent: Names = Field(["*"], description="Ids of agents.")
    user: Names = Field(["*"], description="Users of runs.")
    tenant: Names = Field(["*"], description="Tenants of runs.")
    roles: Names | None = Field(None, description="The user has one of these roles.")

    def misfit(self, run: StartedRun) -> str | None:
        """Return why a run is not one of these; None if it is one."""
        for name, value, patterns in (
            ("agent", run.agent, self.agent),
            ("user", run.user, self.user),
            ("tenant", run.tenant, self.tenant),
        ):
            if not fits_any(value, patterns):
                return f"{name}: {value or '(none)'} is not {' or '.join(patterns)}"
        if self.roles is not None and not set(self.roles) & set(run.roles):
            return f"roles: the user has none of {', '.join(self.roles)}"
        return None


def fits_any(text: str, patterns: Iterable[str]) -> bool:
    """Return whether a text fits one of the patterns, in which only `*` stands for any text."""
    return any(fnmatchcase(text, _escaped(pattern)) for pattern in patterns)


def _escaped(pattern: str) -> str:
    """Return the pattern for fnmatch: every character except `*` matches itself."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def require_unique(ids: list[str], name: str) -> None:
    """Raise ValueError if an id is used twice."""
    if twice := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
        raise ValueError(f"{name}: these ids are used twice: {', '.join(twice)}")
