"""Follows the state that an AG-UI server shares with the clients of its stream."""

from __future__ import annotations

from penstock.dialects.agui.shared_state import SharedState
from penstock.dialects.base import Json, JsonObject


class State:
    """Computes the server's state from the events of a stream."""

    def __init__(self) -> None:
        self._state = SharedState()

    @property
    def value(self) -> Json:
        """The current state; None until the server sends a state."""
        return self._state.value

    def feed(self, body: JsonObject) -> None:
        """Take one event. Only STATE_SNAPSHOT and STATE_DELTA change the state."""
        if body.get("type") == "STATE_SNAPSHOT":
            self._state.snapshot(body.get("snapshot"))
        elif body.get("type") == "STATE_DELTA":
            self._state.delta(body.get("delta"))
