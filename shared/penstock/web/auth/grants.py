"""Defines the scopes of callers, and the limits of stream tokens and of service tokens.

No scope includes another scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from penstock.web.problems import Problem

Permission = Literal[
    "start", "read", "raw", "decide", "automate", "workflow", "erase", "pii", "act-as", "administer"
]

SCOPES: Final = frozenset(get_args(Permission))
# the scopes of a token without a scope claim
DEFAULT: Final = frozenset({"start", "read", "raw", "decide"})
ANONYMOUS: Final = DEFAULT | {"automate", "workflow", "erase", "act-as"}
STREAM_TOKEN: Final = frozenset({"read"})

# The names of claims with scopes. RFC 8693 defines the claim `scope`, which is a string. Some
# issuers write a list, or use another name.
CLAIMS: Final = ("scope", "scopes", "scp")


def granted_scopes(
    claims: Mapping[str, Any],
    default: frozenset[str] = DEFAULT,
    of_roles: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the scopes that the claims of a token name. If they name none, return those of the
    caller's roles; without a scope claim and such roles, return `default`.

    Scopes that a token names count alone: the token may be meant for less than its user may do.
    Unknown words are ignored, because such words may be scopes of other services.

    Raises ValueError for a scope claim that is neither a string nor a list of strings.
    """
    found = [claims[name] for name in CLAIMS if name in claims]
    named = frozenset(word for claim in found for word in _words(claim)) & SCOPES
    return named or of_roles or (frozenset() if found else default)


def _words(claim: Any) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list) and all(isinstance(word, str) for word in claim):
        return claim
    raise ValueError("the scope claim is neither a string nor a list of strings")


EVERYTHING = "*.*"
EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Grant:
    """The limits of a stream token. All limits apply together. An empty field sets no limit.

    `subjects` has texts of the form `category.action`, in which the category and the action may
    each be `*`. `users` has the users whose runs the token may follow. `EVERYBODY` among `users`
    means all users. If `users` is empty, the token may follow the runs of the user who made the
    token.
    """

    token_id: str
    subjects: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    name: str = ""  # the token's name

    def includes_user(self, user_id: str) -> bool:
        return EVERYBODY in self.users or user_id in self.users

    def check_run(self, run_id: str, session_id: str) -> None:
        """Check that the token may follow all events of this run. Raises Problem 404 for a run that
        it may not follow, 403 if it may follow only some subjects."""
        foreign = (self.runs and run_id not in self.runs) or (
            self.sessions and session_id not in self.sessions
        )
        if foreign:
            raise Problem(404, f"there is no run {run_id}")
        self._check_subjects([EVERYTHING])

    def check_session(self, session_id: str) -> None:
        """Check that the token may follow this session. Raises what `check_run` raises."""
        if self.runs or (self.sessions and session_id not in self.sessions):
            raise Problem(404, f"there is no session {session_id}")
        self._check_subjects([EVERYTHING])

    def check_subjects(self, subjects: Sequence[str]) -> None:
        """Check that the token may follow these subjects, or all subjects if `subjects` is empty.

        Raises Problem 403 if the token may not follow these subjects. Also raises Problem 403 if
        the token is limited to some runs or sessions, because the client must then follow the
        streams of these runs or sessions.
        """
        if self.runs or self.sessions:
            raise Problem(403, "this token is for some runs or sessions: follow each by itself")
        self._check_subjects(subjects or [EVERYTHING])

    def _check_subjects(self, subjects: Sequence[str]) -> None:
        for subject in subjects:
            if self.subjects and not any(covers(own, subject) for own in self.subjects):
                raise Problem(403, f"this token does not reach the subject {subject}")


@dataclass(frozen=True, slots=True)
class ServiceGrant:
    """The limits of a service token.

    All limits apply together. If `agents`, `tools` or `rules` is empty, the empty field sets no
    limit.

    `agents` has the ids of the agents whose approvals the token may decide. `tools` has the names
    of the tools whose calls the token may decide, with `*` for any text. `rules` has the ids of the
    policy's rules whose requests the token may decide. `on_behalf_of` has the users for whom the
    token may decide. `EVERYBODY` among them means all users. If `on_behalf_of` is empty, the token
    may decide for nobody else.
    """

    token_id: str
    agents: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    on_behalf_of: tuple[str, ...] = ()
    made_by: str | None = None  # the user who made the token

    @property
    def is_limited(self) -> bool:
        return bool(self.agents or self.tools or self.rules)

    def acts_for(self, user_id: str) -> bool:
        return EVERYBODY in self.on_behalf_of or user_id in self.on_behalf_of

    def check_acts_for(self, user_id: str) -> None:
        if not self.acts_for(user_id):
            raise Problem(403, "this service token may not decide on behalf of that user")


def covers(pattern: str, subject: str) -> bool:
    """Return whether `pattern` matches every subject that `subject` matches. `subject` may be a
    pattern, too."""
    own, asked = pattern.split("."), subject.split(".")
    return len(own) == len(asked) and all(
        mine in ("*", theirs) for mine, theirs in zip(own, asked, strict=True)
    )
