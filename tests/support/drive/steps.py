"""The writes by which connectors divide runs among themselves, by the code that does each write.

The model in `connector/model` and the tests that kill connectors name the writes by this list.
`connector/model/test_names.py` compares the list with the code, and fails if a method is renamed or
a new method writes.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

STATE, FENCE = "penstock_connector.state", "penstock.bus.write.raw_writer"
CLAIMS, LEG_RECORDS = f"{STATE}.claims:Claims", f"{STATE}.leg_record:LegRecords"
SENDINGS, SESSIONS = f"{STATE}.claims:Sendings", f"{STATE}.session_queue:SessionQueue"


class Step(StrEnum):
    """A write, as `<module>:<Class>.<method>`; for a source frame, ` <kind>` follows."""

    CLAIM = f"{CLAIMS}.claim"  # create claim.<run>
    GIVE_BACK = f"{CLAIMS}.give_back"  # release claim.<run>
    TAKE_OVER_CLAIM = f"{CLAIMS}.take_over"
    NOTE = f"{LEG_RECORDS}.put"  # put active.<pod>.<run>
    FORGET = f"{LEG_RECORDS}.delete"  # delete active.<pod>.<run>
    FORGET_OTHER = f"{LEG_RECORDS}.delete_of"  # delete active.<pod>.<run> of another connector
    CLAIM_SENDING = f"{SENDINGS}.claim"  # create sent.<approval>
    GIVE_BACK_SENDING = f"{SENDINGS}.give_back"
    TAKE_OVER_SENDING = f"{SENDINGS}.take_over"
    RECORD_SENDING = f"{SENDINGS}.record"
    JOIN = f"{SESSIONS}.join"  # append a turn to the session's queue
    TAKE_OVER_TURN = f"{SESSIONS}.take_over"
    LEAVE = f"{SESSIONS}.leave"
    PASS_OVER = f"{SESSIONS}._pass_over"
    FORGET_ENDED = f"{SESSIONS}.forget_ended"  # remove ended runs from the session's list
    OPEN = f"{FENCE}:RawWriter.write open"
    CLAIM_LEG = f"{FENCE}:RawWriter.write claim"
    BYTES = f"{FENCE}:RawWriter.write bytes"
    END = f"{FENCE}:RawWriter.write end"
    LOST = f"{FENCE}:RawWriter.write lost"
    EVENT = f"{FENCE}:RawWriter.write event"

    @property
    def module(self) -> str:
        """The module of the code."""
        return self.partition(":")[0]

    @property
    def owner(self) -> str:
        """The name of the class."""
        return self.partition(":")[2].partition(".")[0]

    @property
    def method(self) -> str:
        """The name of the method."""
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
        """Replace each such write of this process by a call of `around`, which gets the write."""
        owner = getattr(importlib.import_module(self.module), self.owner)
        write = getattr(owner, self.method)
        kind = self.kind

        async def patched(instance: Any, *arguments: Any, **named: Any) -> Any:
            is_other = kind is not None and (arguments[0] != kind or instance.writer != "upstream")
            if is_other:
                return await write(instance, *arguments, **named)
            return await around(lambda: write(instance, *arguments, **named))

        put(owner, self.method, patched)
