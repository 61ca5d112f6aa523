"""The state that an AG-UI server shares with the clients of its stream."""

from __future__ import annotations

from contextlib import suppress

from penstock.dialects.base import Json, JsonObject
from penstock.dialects.patch import Document, DoesNotApply, is_patch


class State:
    """The last snapshot with the patches after it. None until the server sends one."""

    def __init__(self) -> None:
        self._document: Document | None = None

    @property
    def value(self) -> Json:
        """The current state."""
        return None if self._document is None else self._document.value

    def feed(self, body: JsonObject) -> None:
        """STATE_SNAPSHOT or STATE_DELTA. A patch that does not apply changes nothing."""
        if body.get("type") == "STATE_SNAPSHOT":
            self._document = Document(body.get("snapshot"))
        elif body.get("type") == "STATE_DELTA" and is_patch(body.get("delta")):
            self._document = self._document or Document({})
            with suppress(DoesNotApply):
                self._document.apply(body["delta"])
