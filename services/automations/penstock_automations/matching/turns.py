"""Lets users take turns, so that no flood of one user's events stands before another user's."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# How many events a user has matched in one turn. Neighbours are often of one run, and an ordered
# rule's jobs of one run are stored by one write.
IN_TURN: Final = 10


class Turns(Generic[T]):
    """The events that wait, in a queue for each user."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, user: str, item: T) -> None:
        self._queues.setdefault(user, deque()).append(item)

    def take(self, limit: int) -> list[T]:
        """Remove and return up to `limit` items, from each queue in turn."""
        taken: list[T] = []
        while self._queues and len(taken) < limit:
            user, queue = self._queues.popitem(last=False)
            for _ in range(min(IN_TURN, len(queue), limit - len(taken))):
                taken.append(queue.popleft())
            if queue:
                self._queues[user] = queue
        return taken
