"""Keeps the open tool calls of a run, with unique ids, until their responses come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.dialects.base import MAX_OPEN, Ids, Json, LimitReached
from penstock.dialects.snapshots import PART, Snapshots, Table, each, of


@dataclass(slots=True)
class Call:
    """A tool call that has no result yet."""

    id: str  # unique in the run; `upstream_id` may repeat
    upstream_id: str | None
    name: str
    args: Json
    long_running: bool = False
    refused: bool = False


class Calls(Snapshots):
    """Keeps all open calls of a run, in the order in which they were announced."""

    STORED: ClassVar[Table] = {"ids": ("_ids", PART), "open": ("_open", each(of(Call)))}

    def __init__(self) -> None:
        self._ids = Ids()
        self._open: list[Call] = []

    def reserve(self, upstream_id: str | None) -> str:
        """Return a new unique id for a call whose arguments are streamed before its
        announcement."""
        return self._ids.unique(upstream_id) if upstream_id else self._ids.make("call")

    def announce(
        self, upstream_id: str | None, name: str, args: Json, reserved: str | None = None
    ) -> Call | None:
        """Add and return a new call; return None if the call is already open.

        Some models number their calls from `call_0` in every answer, so an upstream id may repeat.
        A repeated id belongs to a new call if the name or the arguments differ, or if the earlier
        call already has its result.
        """
        if upstream_id and any(
            call.upstream_id == upstream_id and call.name == name and call.args == args
            for call in self._open
        ):
            return None
        call = Call(reserved or self.reserve(upstream_id), upstream_id, name, args)
        self._open.append(call)
        LimitReached.check(len(self._open), MAX_OPEN, "calls without a result")
        return call

    def find(self, upstream_id: str | None, name: str | None = None) -> Call | None:
        """Return the open call of a response.

        A response with an id belongs to the open call with the same id. If there is no such call,
        or if the response has no id, the response belongs to the oldest open call with the same
        name. If both the call and the response have an id and these ids differ, the call does not
        fit.
        """
        if upstream_id:
            for call in self._open:
                if call.upstream_id == upstream_id:
                    return call
        return next(
            (
                call
                for call in self._open
                if (name is None and not upstream_id)
                or (call.name == name and not (upstream_id and call.upstream_id))
            ),
            None,
        )

    def refuse(self, call_id: str) -> None:
        """Mark an open call as rejected. `call_id` is `Call.id`, not the upstream's id."""
        for call in self._open:
            if call.id == call_id:
                call.refused = True

    def close(self, call: Call) -> None:
        self._open.remove(call)

    def refused(self) -> list[Call]:
        """Return the rejected calls that have no result yet."""
        return [call for call in self._open if call.refused]
