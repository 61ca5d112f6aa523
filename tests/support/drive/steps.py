"""The writes by which connectors divide runs among themselves, by the code that does each of them.

The model in `connector/model` and the kills in the tests name them by this list, and
`connector/model/test_names.py` keeps it equal to the code: a method that is renamed, or a new one
that writes, fails there.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

STATE, FENCE = "penstock_connector.state", "penstock.bus.write.raw_writer"
CLAIMS, LEG_RECORDS = f"{STATE}.claims:Claims", f"{STATE}.leg_record:LegRecords"
SENDINGS, SESSIONS = f"{STATE}.sendings:Sendings", f"{STATE}.session_queue:SessionQueue"


class Step(StrEnum):
    """`<module>:<Class>.<method>`, and for a source frame ` <kind>`."""

    CLAIM = f"{CLAIMS}.claim"  # create claim.<run>
    GIVE_BACK = f"{CLAIMS}.give_back"  # claim.<run> is nobody's
    TAKE_OVER_CLAIM = f"{CLAIMS}.take_over"
    NOTE = f"{LEG_RECORDS}.put"  # put active.<pod>.<run>
    FORGET = f"{LEG_RECORDS}.delete"  # delete active.<pod>.<run>
    FORGET_OTHER = f"{LEG_RECORDS}.delete_of"  # delete another's active.<pod>.<run>
    CLAIM_SENDING = f"{SENDINGS}.claim"  # create sent.<approval>
    GIVE_BACK_SENDING = f"{SENDINGS}.give_back"
    TAKE_OVER_SENDING = f"{SENDINGS}.take_over"
    RECORD_SENDING = f"{SENDINGS}.record"
    JOIN = f"{SESSIONS}.join"  # a turn at the end of the session's queue
    TAKE_OVER_TURN = f"{SESSIONS}.take_over"
    LEAVE = f"{SESSIONS}.leave"
    PASS_OVER = f"{SESSIONS}._pass_over"
    FORGET_ENDED = f"{SESSIONS}.forget_ended"  # runs that the session's list holds no more
    OPEN = f"{FENCE}:RawWriter.write open"
    CLAIM_LEG = f"{FENCE}:RawWriter.write claim"
    BYTES = f"{FENCE}:RawWriter.write bytes"
    END = f"{FENCE}:RawWriter.write end"
    LOST = f"{FENCE}:RawWriter.write lost"
    EVENT = f"{FENCE}:RawWriter.write event"

    @property
    def module(self) -> str:
        """Where the code stands."""
        return self.partition(":")[0]

    @property
    def owner(self) -> str:
        """The class."""
        return self.partition(":")[2].partition(".")[0]

    @property
    def method(self) -> str:
        """The method of it."""
        return self.partition(":")[2].partition(".")[2].partition(" ")[0]

    @property
    def kind(self) -> str | None:
        """The kind of a source frame; None for a record."""
        return self.partition(" ")[2] or None

    def patch(
        self,
        around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        put: Callable[[Any, str, Any], None] = setattr,
    ) -> None:
        """From now on each such write of this process is done by `around`, which gets the write."""
        owner = getattr(importlib.import_module(self.module), self.owner)
        write = getattr(owner, self.method)
        kind = self.kind

        async def patched(instance: Any, *arguments: Any, **named: Any) -> Any:
            is_other = kind is not None and (arguments[0] != kind or instance.writer != "upstream")
            if is_other:
                return await write(instance, *arguments, **named)
            return await around(lambda: write(instance, *arguments, **named))

        put(owner, self.method, patched)
