"""Python's garbage collector without pauses that grow with the number of open streams.

An open stream is 180 objects that the collector knows. To look at all of them takes 0.1 ms a
stream, a second at 10,000, in which nobody is given anything; and while streams come it is done for
every quarter more. But what an edge keeps it keeps for long, and a stream that ends leaves no
cycle: reference counts free it. So what has been looked at once is set aside.
"""

from __future__ import annotations

import gc
import time
from typing import Any

WHOLE_S = 3600.0


class Collector:
    """Looks at new objects only, and once in `whole_s` at all: for cycles nobody knows of."""

    def __init__(self, whole_s: float = WHOLE_S) -> None:
        self._whole_s = whole_s
        self._due = time.monotonic() + whole_s

    def install(self) -> None:
        """Begin with what was imported: it stays to the end."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._on_collection)

    def uninstall(self) -> None:
        """As it was."""
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + self._whole_s
            gc.unfreeze()
