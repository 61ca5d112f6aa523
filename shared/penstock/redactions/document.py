"""Reads the document of redactions, and says which rules a run has.

A run has the rules that are in force when it starts, as its record and its command say; a changed
document applies to new runs. All but `CurrentRedactions` is pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator
from yaml.nodes import Node

from penstock.bus import Bus
from penstock.documents.fields import (
    Id,
    Listed,
    RunMatch,
    StartedRun,
    Strict,
    Version,
    fits_any,
    require_unique,
)
from penstock.documents.reading import Found, checked, digest_of, value_of
from penstock.documents.store import Documents, Source
from penstock.redactions.kinds import KINDS, OWN
from penstock.redactions.patterns import MAX_PATTERN_CHARACTERS, InvalidPattern
from penstock.redactions.scanner import Action, Rules, Where
from penstock.validation import check_url
from penstock.web.problems import Problem

KEY: Final = "redactions"
MAX_RULES: Final = 100
_NAMES: Final = ", ".join(KINDS)
KindName = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS + len(OWN))]


class Checker(Strict):
    """A server of the operator's that reads texts, and says what is taken out of them."""

    url: str = Field(
        max_length=2000,
        pattern=r"^https?://[^/\s]",
        description="It gets `{run_id, agent, texts}`, and answers `{found: [{text, start, end, "
        "kind, action}]}`: the number of the text, the characters, and what they are.",
    )
    secret: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,128}$",
        description="The name of a secret of the operator, as in a call of a workflow.",
    )
    timeout_s: float = Field(
        5.0, ge=1, le=30, description="Seconds after which a text counts as not checked."
    )
    on_failure: Literal["open", "closed"] = Field(
        "closed",
        description="What becomes of a text that was not checked: `open` lets it pass, `closed` "
        "stops the run.",
    )

    @field_validator("url")
    @classmethod
    def _can_be_called(cls, url: str) -> str:
        check_url(url, "secret")
        return url


class Redaction(Strict):
    """What is taken out of the content of some runs: `kinds`, or what a `check` finds."""

    id: Id = Field(description="The rule's name.")
    match: RunMatch = Field(RunMatch(), description="The runs to which it applies.")
    kinds: Annotated[list[KindName], Listed, Field(max_length=50)] = Field(
        [],
        description=f"What is taken out: {_NAMES}, or `re:` and a pattern of RE2 without `*` and "
        "`+`, such as `re:\\bEMP-[0-9]{6}\\b`.",
    )
    check: Checker | None = Field(
        None, description="Of a run's rules with a check, the first counts."
    )
    where: Where = Field(
        "ingest",
        description="`ingest`: before the events are stored, so that nobody sees it. `egress`: it "
        "is stored, and masked for callers without the scope `pii`.",
    )
    action: Action = Field(
        "mask",
        description="`mask` puts a name in its place, such as `[EMAIL_1]`, which is the same for "
        "the same value in the run; `drop` puts nothing there; `block` stops the run; `review` "
        "masks it, and asks people whether the run goes on.",
    )

    @model_validator(mode="after")
    def _finds_something(self) -> Redaction:
        if bool(self.kinds) == (self.check is not None):
            raise ValueError("give either `kinds` or `check`")
        if self.where == "egress" and (self.check is not None or self.action != "mask"):
            raise ValueError(
                "`where: egress` takes `kinds` and the action `mask`: what some callers may read "
                "is neither dropped nor stopped, and a checker reads before anything is stored; "
                "leave `where` out"
            )
        return self


class RedactionsDocument(Strict):
    """All redactions. Where several name the same kind, the first that a run matches counts."""

    version: Version = Field(description="A number that grows with every change.")
    redact: list[Redaction] = Field([], max_length=MAX_RULES)

    @model_validator(mode="after")
    def _check_ids(self) -> RedactionsDocument:
        require_unique([rule.id for rule in self.redact], "redact")
        return self


class Redactions:
    """The redactions in force."""

    def __init__(self, document: RedactionsDocument, source: Source = "kv") -> None:
        self.document = document
        self.source: Source = source
        self.digest = digest_of(document)

    @property
    def version(self) -> int:
        return self.document.version

    def of(self, run: StartedRun) -> dict[str, Any] | None:
        """Return the version, and the rules and the check that apply to a run, as its command has
        them; None without any."""
        applying = [rule for rule in self.document.redact if rule.match.misfit(run) is None]
        if not applying:
            return None
        rules = [
            {
                **{"id": rule.id, "kinds": rule.kinds, "action": rule.action},
                **({"where": rule.where} if rule.where != "ingest" else {}),
            }
            for rule in applying
            if rule.check is None
        ]
        checks = [
            {**rule.check.model_dump(exclude_none=True), "action": rule.action}
            for rule in applying
            if rule.check is not None
        ]
        found: dict[str, Any] = {"version": self.version, "rules": rules}
        return {**found, "check": checks[0]} if checks else found

    def names(self, agent: str, *, sees_pii: bool = False) -> bool:
        """Return whether a run of this agent may have rules, of which a caller who may read what is
        masked does not count those that only mask."""
        return any(
            fits_any(agent, rule.match.agent)
            for rule in self.document.redact
            if not (sees_pii and rule.where == "egress")
        )


NONE: Final = Redactions(RedactionsDocument.model_construct(version=0, redact=[]), "builtin")


def parse(text: str) -> Redactions:
    """Return the redactions that a text in YAML (or JSON) describes. Raises InvalidDocument."""
    value, root = value_of(text)
    return from_value(value, "file", root)


def from_value(value: Any, source: Source, root: Node | None = None) -> Redactions:
    return Redactions(checked(RedactionsDocument, value, _wrong_kinds, root), source)


def _wrong_kinds(document: RedactionsDocument) -> Iterator[Found]:
    is_wrong = False
    for number, rule in enumerate(document.redact):
        for index, kind in enumerate(rule.kinds):
            try:
                Rules([{"kinds": [kind], "action": rule.action}])
            except KeyError:
                is_wrong = True
                reason = f"{kind!r} is none of {_NAMES}, and does not begin with {OWN}"
                yield ("redact", number, "kinds", index), reason
            except InvalidPattern as error:
                is_wrong = True
                yield ("redact", number, "kinds", index), str(error)
    if document.redact and not is_wrong:
        try:  # a run may have all rules
            Rules([rule.model_dump() for rule in document.redact])
        except InvalidPattern as error:
            yield ("redact",), str(error)


class CurrentRedactions(Documents[Redactions]):
    """Keeps the redactions in force up to date. They are stored over HTTP only, so that all
    services that start runs have the same."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, from_value, NONE, name="redactions", key=KEY, keeps_earlier=True)

    async def at_start(self, version: int, run: StartedRun) -> dict[str, Any] | None:
        """Return the rules of a run whose first start has found this version, as `Redactions.of`.
        Raises Problem 409 if that version is no longer stored."""
        await self.in_force()
        if (found := await self.of_version(version)) is None:
            raise Problem(
                409,
                f"the run was first started under version {version} of the redactions, which is no "
                "longer stored; cancel it, and start another one",
            )
        return found.of(run)
