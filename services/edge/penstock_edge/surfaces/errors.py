"""Errors about the body of a request, in FastAPI's form.

Clients of Agno, ADK and AG-UI can read this form: a list of `{type, loc, msg}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock.start_fields import NotAccepted
from penstock.web.problems import Problem

JsonObject = dict[str, Any]
Where = Sequence[str | int]

SHOWN_CHARACTERS: Final = 128


class InvalidBody(Problem):
    """Refuses a request with 422 because of its body; `errors` are in FastAPI's form."""

    def __init__(self, errors: Iterable[JsonObject]) -> None:
        self.errors = list(errors)
        text = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in self.errors)
        super().__init__(422, text, errors=self.errors)


def body_error(error_type: str, where: Where, text: str) -> JsonObject:
    return {"type": error_type, "loc": ["body", *where], "msg": text}


def invalid(error_type: str, where: Where, text: str) -> InvalidBody:
    return InvalidBody([body_error(error_type, where, text)])


@contextmanager
def unaccepted_as_422(*prefix: str) -> Iterator[None]:
    """Turn a `NotAccepted` into an `InvalidBody` of fields under `prefix` (decision 0126)."""
    try:
        yield
    except NotAccepted as error:
        raise InvalidBody(
            {**body_error("not_accepted", (*prefix, *refusal.where), refusal.text), "input": None}
            for refusal in error.refusals
        ) from error


def shortened(text: str) -> str:
    return text[:SHOWN_CHARACTERS]
