"""A server of recorded runs, for the tests of what uses the client."""

from __future__ import annotations

from penstock_client.testing.server import ReplayServer

__all__ = ["ReplayServer"]
