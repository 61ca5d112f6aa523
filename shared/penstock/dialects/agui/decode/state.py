"""The state that an AG-UI server shares, as a client of its stream would have it."""

from __future__ import annotations

from contextlib import suppress

from penstock.dialects.base import Json, JsonObject
from penstock.dialects.patch import Document, DoesNotApply, is_patch


class State:
    """The last snapshot with the patches on it; None until the server told any."""

    def __init__(self) -> None:
        self._document: Document | None = None

    @property
    def value(self) -> Json:
        """The state now."""
        return None if self._document is None else self._document.value

    def feed(self, body: JsonObject) -> None:
        """STATE_SNAPSHOT or STATE_DELTA; what does not apply leaves the state as it is."""
        if body.get("type") == "STATE_SNAPSHOT":
            self._document = Document(body.get("snapshot"))
        elif body.get("type") == "STATE_DELTA" and is_patch(body.get("delta")):
            self._document = self._document or Document({})
            with suppress(DoesNotApply):
                self._document.apply(body["delta"])
