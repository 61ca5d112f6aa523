"""Computes the state that an AG-UI server shares with its clients.

The state changes by the same rules as in AG-UI's reference client.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.dialects.base import Json, JsonObject
from penstock.dialects.patch import Document, DoesNotApply, is_patch


class SharedState:
    """Keeps the shared state, which is the last snapshot, changed by the later patches."""

    def __init__(self) -> None:
        self._document: Document | None = None

    @property
    def is_known(self) -> bool:
        return self._document is not None

    @property
    def value(self) -> Json:
        """None before the first snapshot or patch."""
        return None if self._document is None else self._document.value

    def snapshot(self, value: Json) -> None:
        self._document = Document(value)

    def delta(self, patch: Json) -> None:
        """As in the reference client, a patch that does not fit changes nothing."""
        if is_patch(patch):
            self._document = self._document or Document({})
            with suppress(DoesNotApply):
                self._document.apply(patch)


class State:
    """Computes the server's state from the events of a stream."""

    def __init__(self) -> None:
        self._state = SharedState()

    @property
    def value(self) -> Json:
        """None until the server sends a state."""
        return self._state.value

    def feed(self, body: JsonObject) -> None:
        """Only STATE_SNAPSHOT and STATE_DELTA change the state."""
        if body.get("type") == "STATE_SNAPSHOT":
            self._state.snapshot(body.get("snapshot"))
        elif body.get("type") == "STATE_DELTA":
            self._state.delta(body.get("delta"))
