"""The tool calls of a run: announced once, their ids unique, their responses paired."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from penstock.dialects.base import MAX_OPEN, Ids, Json, JsonObject, LimitReached


@dataclass(slots=True)
class Call:
    """A call without its result so far."""

    id: str  # ours, unique in the run
    upstream_id: str | None
    name: str
    args: Json
    long_running: bool = False
    refused: bool = False


class Calls:
    """All open calls, in the order in which they were announced."""

    def __init__(self) -> None:
        self._ids = Ids()
        self._open: list[Call] = []

    def reserve(self, upstream_id: str | None) -> str:
        """An id for a call that is about to be announced."""
        return self._ids.unique(upstream_id) if upstream_id else self._ids.make("call")

    def announce(
        self, upstream_id: str | None, name: str, args: Json, reserved: str | None = None
    ) -> Call | None:
        """The new call; None when it is announced already.

        An id that comes again for other arguments, or after its result, is another call: some
        models count from `call_0` in every answer.
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
        """The open call that a response is for: by id; without one the oldest of that name."""
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
        """Somebody refused the open call of our id."""
        for call in self._open:
            if call.id == call_id:
                call.refused = True

    def close(self, call: Call) -> None:
        """The call has its result."""
        self._open.remove(call)

    def refused(self) -> list[Call]:
        """The calls that somebody refused and that have no result yet."""
        return [call for call in self._open if call.refused]

    def snapshot(self) -> JsonObject:
        """What `restore` needs."""
        return {"ids": self._ids.snapshot(), "open": [asdict(call) for call in self._open]}

    def restore(self, state: JsonObject) -> None:
        """Goes on from a snapshot."""
        self._ids.restore(state["ids"])
        self._open = [Call(**call) for call in state["open"]]
