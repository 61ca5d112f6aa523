"""The state that an AG-UI server and its clients share, as a client holds it."""

from __future__ import annotations

from contextlib import suppress

from penstock.dialects.base import Json
from penstock.dialects.patch import Document, DoesNotApply, is_patch


class SharedState:
    """The last snapshot with the patches after it."""

    def __init__(self) -> None:
        self._document: Document | None = None

    @property
    def is_known(self) -> bool:
        """Whether a snapshot or a patch has come."""
        return self._document is not None

    @property
    def value(self) -> Json:
        """The current state; None before the first one."""
        return None if self._document is None else self._document.value

    def snapshot(self, value: Json) -> None:
        """STATE_SNAPSHOT."""
        self._document = Document(value)

    def delta(self, patch: Json) -> None:
        """STATE_DELTA. As in the reference client, a patch that does not apply changes nothing."""
        if is_patch(patch):
            self._document = self._document or Document({})
            with suppress(DoesNotApply):
                self._document.apply(patch)
