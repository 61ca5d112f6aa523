"""How many connections one user may hold open at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.web.auth.errors import Refused
from penstock.web.auth.identity import Identity


class Connections:
    """Counts requests and WebSockets under way, per user, in this process.

    `anonymous` is nobody in particular, so nothing is counted for it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def take(self, identity: Identity) -> Callable[[], None]:
        """One more; what it returns gives it back. Raises Refused 429 beyond the limit."""
        if identity.kind == "anonymous":
            return lambda: None
        user_id = identity.user_id
        if self._open[user_id] >= self._most:
            why = f"there are {self._most} connections of this user already; close some"
            raise Refused(429, why, {"retry-after": "1"})
        self._open[user_id] += 1

        def give_back() -> None:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]

        return give_back
