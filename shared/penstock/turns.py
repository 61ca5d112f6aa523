"""Lets tenants take turns, and the users of each tenant, so that no flood of one user or tenant
stands before others. Pure.

Without tenants, all users are in one tenant, whose name is empty.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

T = TypeVar("T")

# What is counted: a tenant, as (tenant,), or a user, as a `TenantUser`.
Level: TypeAlias = tuple[str, ...]


class TenantUser(NamedTuple):
    """A user in a tenant."""

    tenant: str
    user_id: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the user in the fields of a command or record; empty texts if there is none."""
        return cls(str(fields.get("tenant") or ""), str(fields.get("user_id") or ""))

    @property
    def levels(self) -> tuple[Level, Level]:
        """The tenant, and the user in it."""
        return self[:1], self


class Turns(Generic[T]):
    """The items that wait, in a queue for each user."""

    def __init__(self, in_turn: int = 1) -> None:
        """`in_turn` is the number of items that a user has taken in one turn."""
        self._in_turn: Final = in_turn
        self._tenants: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def __len__(self) -> int:
        return sum(len(queue) for users in self._tenants.values() for queue in users.values())

    def add(self, user: TenantUser, item: T) -> None:
        users = self._tenants.setdefault(user.tenant, OrderedDict())
        users.setdefault(user.user_id, deque()).append(item)

    def take(self, limit: int = 1) -> list[T]:
        """Remove and return up to `limit` items: of each tenant in turn, those of its next user."""
        taken: list[T] = []
        while self._tenants and len(taken) < limit:
            tenant, users = self._tenants.popitem(last=False)
            user_id, queue = users.popitem(last=False)
            for _ in range(min(self._in_turn, len(queue), limit - len(taken))):
                taken.append(queue.popleft())
            if queue:
                users[user_id] = queue
            if users:
                self._tenants[tenant] = users
        return taken
