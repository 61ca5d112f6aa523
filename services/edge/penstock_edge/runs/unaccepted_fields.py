"""Turns `NotAccepted`, which lists the fields that an agent does not accept, into a 422 (decision
0126).

The 422 names each of these fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.start_fields import NotAccepted
from penstock.web.problems import Problem


@contextmanager
def unaccepted_as_422(*prefix: str) -> Iterator[None]:
    """Turn a `NotAccepted` that the block raises into a Problem.

    `prefix` is the path in the body under which the fields are.

    Raises:
        Problem: 422. The `errors` of the Problem have FastAPI's shape: type, loc, msg.
    """
    try:
        yield
    except NotAccepted as error:
        errors: list[dict[str, Any]] = [
            {
                "type": "not_accepted",
                "loc": ["body", *prefix, *refusal.where],
                "msg": refusal.text,
                "input": None,
            }
            for refusal in error.refusals
        ]
        text = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in errors)
        raise Problem(422, text, errors=errors) from error
