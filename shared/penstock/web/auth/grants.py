"""The limits of a stream token: subjects, runs, sessions and users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.web.problems import Problem

EVERYTHING = "*.*"
EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Grant:
    """The limits of a stream token. All of them hold together; an empty one limits nothing.

    `subjects` are `category.action`, each of which may be `*`. `users`: whose runs it reaches,
    `EVERYBODY` among them for all; empty for those of whoever made it.
    """

    token_id: str
    subjects: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def reaches(self, user_id: str) -> bool:
        """Whether `users` names the user or everybody."""
        return EVERYBODY in self.users or user_id in self.users

    def check_run(self, run_id: str, session_id: str) -> None:
        """Check that the token may follow this run, with all events.

        Raises Problem 404 for another run, 403 where it may see some subjects only.
        """
        foreign = (self.runs and run_id not in self.runs) or (
            self.sessions and session_id not in self.sessions
        )
        if foreign:
            raise Problem(404, f"there is no run {run_id}")
        self._check_subjects([EVERYTHING])

    def check_session(self, session_id: str) -> None:
        """Check that the token may follow this session. Raises Problem as `check_run`."""
        if self.runs or (self.sessions and session_id not in self.sessions):
            raise Problem(404, f"there is no session {session_id}")
        self._check_subjects([EVERYTHING])

    def check_subjects(self, subjects: Sequence[str]) -> None:
        """Check that the token may follow these subjects of all its runs; none given means all.

        Raises Problem 403; also for a token of some runs or sessions, which has streams of its own.
        """
        if self.runs or self.sessions:
            raise Problem(403, "this token is for some runs or sessions: follow each by itself")
        self._check_subjects(subjects or [EVERYTHING])

    def _check_subjects(self, subjects: Sequence[str]) -> None:
        for subject in subjects:
            if self.subjects and not any(covers(own, subject) for own in self.subjects):
                raise Problem(403, f"this token does not reach the subject {subject}")


def covers(pattern: str, subject: str) -> bool:
    """Whether `pattern` matches everything that `subject`, perhaps a pattern, matches."""
    own, asked = pattern.split("."), subject.split(".")
    return len(own) == len(asked) and all(
        mine in ("*", theirs) for mine, theirs in zip(own, asked, strict=True)
    )
