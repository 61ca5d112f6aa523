"""Defines the settings of the connection to NATS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.bus.connection.clock import LIMIT_S
from penstock.bus.connection.tls import Tls
from penstock.bus.streams import Retention


@dataclass(frozen=True, slots=True)
class BusSettings:
    """The settings of one `Bus`.

    `url`: the URL of one server, or the URLs of several servers separated by commas. The client
    discovers a cluster's other servers. `publish_timeout_s`: how long a request waits for its
    answer. After this time, the outcome of the request is unknown. `max_unacked_bytes`: the limit
    of bytes that are published and not yet acknowledged. Further publishes wait while the limit is
    reached. `repairs`: whether this process repairs streams that lost their end (see
    `state.continuity`). Only normalizers do this. `clock_limit_s`: the limit of the difference
    between this machine's clock and NATS's clock. `password`: the password, or a function that is
    called for each connection. `inbox_prefix`: the prefix of reply subjects; other NATS users may
    not subscribe to it.
    """

    url: str = "nats://127.0.0.1:4222"
    name: str = "penstock"
    user: str | None = None
    password: str | Callable[[], str] | None = field(default=None, repr=False)
    credentials_file: str | None = None
    inbox_prefix: str = "_INBOX"
    tls: Tls = field(default_factory=Tls)
    connect_timeout_s: float = 10.0
    publish_timeout_s: float = 5.0
    max_unacked_bytes: int = 64 * 1024 * 1024
    clock_limit_s: float = LIMIT_S
    retention: Retention = field(default_factory=Retention)
    repairs: bool = False
