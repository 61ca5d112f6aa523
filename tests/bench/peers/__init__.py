"""The measured edges: Penstock's, at one or more versions, and the edges of its peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from bench.peers import centrifugo, naive, nchan, penstock
from bench.peers.served import Served

# The peers with which Penstock's edge is compared.
EDGES: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[Served]]]] = {
    "nchan": nchan.edge,
    "centrifugo": centrifugo.edge,
    "naive": naive.edge,
}

__all__ = ["EDGES", "centrifugo", "naive", "nchan", "penstock"]
