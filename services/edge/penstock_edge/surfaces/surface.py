"""The base classes of surfaces, whose routes `EdgeService` adds to its HTTP server, and of their
handlers. A surface is for one kind of client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from penstock.web.operation import Handler, Operation, Route, operations_of, routes_of
from penstock_edge.edge import Edge


@runtime_checkable
class Closing(Protocol):
    """Handlers that must be closed, because they own a resource such as an HTTP client."""

    async def close(self) -> None: ...


class Handlers:
    """The base class of handlers, which share the parts of one edge."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge


class Surface:
    """The base class of surfaces, which list the classes of their handlers in `handlers`, whose
    methods declare their operations with `serves`. Each is made with the edge, unless `make` is
    overridden."""

    handlers: ClassVar[tuple[type, ...]]

    def __init__(self, edge: Edge) -> None:
        self._made = self.make(edge)

    @classmethod
    def operations(cls) -> tuple[Operation, ...]:
        return operations_of(*cls.handlers)

    def make(self, edge: Edge) -> Sequence[object]:
        return [handler(edge) for handler in self.handlers]

    def routes(self, around: Callable[[Handler], Handler]) -> list[Route]:
        return [route for made in self._made for route in routes_of(made, around)]

    async def close(self) -> None:
        for made in self._made:
            if isinstance(made, Closing):
                await made.close()
