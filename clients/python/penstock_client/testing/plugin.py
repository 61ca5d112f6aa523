"""The fixture `penstock_replay` of pytest, which every test has where this package is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def penstock_replay() -> Iterator[object]:
    """Serve recorded runs at `penstock_replay.url`; see penstock_client.testing.ReplayServer."""
    # pytest loads this module in each run of tests, also where nobody uses the fixture
    from penstock_client.testing import ReplayServer  # noqa: PLC0415

    with ReplayServer() as server:
        yield server
