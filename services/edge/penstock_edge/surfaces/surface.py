"""A surface as the edge's service mounts it: the handlers of one contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from penstock.web.operation import Handler, Operation, Route, operations_of, routes_of
from penstock_edge.edge import Edge


@runtime_checkable
class Closing(Protocol):
    """Handlers that hold something, such as an HTTP client."""

    async def close(self) -> None:
        """Release it."""
        ...


class Surface:
    """The base of every surface. A subclass names the classes of its handlers.

    The methods of these classes declare their operations by `serves`. Each class is made with the
    edge, unless the subclass makes them itself (`make`).
    """

    handlers: ClassVar[tuple[type, ...]]

    def __init__(self, edge: Edge) -> None:
        self._made = self.make(edge)

    @classmethod
    def operations(cls) -> tuple[Operation, ...]:
        """The operations of all handlers, in the order of `handlers`."""
        return operations_of(*cls.handlers)

    def make(self, edge: Edge) -> Sequence[object]:
        """The handlers of this edge."""
        return [handler(edge) for handler in self.handlers]

    def routes(self, around: Callable[[Handler], Handler]) -> list[Route]:
        """The routes of all handlers. `around` wraps each of them."""
        return [route for made in self._made for route in routes_of(made, around)]

    async def close(self) -> None:
        """Release what the handlers hold."""
        for made in self._made:
            if isinstance(made, Closing):
                await made.close()
