"""Turns failures of the bus and of records into answers over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

from penstock.bus import BusError, ObjectGone
from penstock.bus.state.bucket_index import StillReading
from penstock.web.problems import Problem
from penstock_approvals.store.records import UnreadableRecord

log = logging.getLogger(__name__)

T = TypeVar("T")


async def or_problem(answer: Awaitable[T]) -> T:
    """Await and return the answer. Raises Problem 410, 500 or 503 if the bus or a record fails."""
    try:
        return await answer
    except ObjectGone as error:
        raise Problem(410, str(error)) from error
    except UnreadableRecord as error:
        log.error("%s", error)
        raise Problem(500, str(error)) from error
    except StillReading as error:
        raise Problem(503, str(error)) from error
    except BusError as error:
        raise Problem(503, f"the bus does not answer: {error}; try again") from error
