"""Run a NATS server for these tests alone: no connector takes the commands that decisions send."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.real.nats import NatsServer


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("approvals"), name="nats of approvals")
    server.start()
    yield server
    server.remove()
