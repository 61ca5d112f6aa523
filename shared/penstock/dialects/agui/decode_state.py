"""The state that an AG-UI server shares, as a client of its stream would have it."""

from __future__ import annotations

from penstock.dialects.agui.patch import DoesNotApply, apply, is_patch
from penstock.dialects.base import Json, JsonObject


class State:
    """The last snapshot with the patches on it; None until the server told any."""

    def __init__(self, value: Json = None) -> None:
        self.value = value

    def feed(self, body: JsonObject) -> None:
        """STATE_SNAPSHOT or STATE_DELTA; a patch that does not apply leaves the state as it is."""
        if body.get("type") == "STATE_SNAPSHOT":
            self.value = body.get("snapshot")
        elif body.get("type") == "STATE_DELTA" and is_patch(body.get("delta")):
            try:
                self.value = apply({} if self.value is None else self.value, body["delta"])
            except DoesNotApply:
                return
