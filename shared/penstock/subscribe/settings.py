"""The settings of a subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bus import BusSettings
from penstock.bus.admin.permissions import DOMAIN, inbox_prefix
from penstock.bus.connection.settings import Tls


@dataclass(frozen=True, slots=True)
class Nats:
    """The NATS servers, and the user with which a subscriber logs in.

    `url` is one URL, or several URLs separated by commas. `password_file` is read at each start.
    `inbox_prefix` is the prefix of the reply subjects to which the user may subscribe; the default
    is `_INBOX_<user>`. `domain` is the JetStream domain under which the subscribers' account
    reaches the streams. For a user of Penstock's own account, such as the operator, `domain` is
    None.
    """

    url: str = "nats://127.0.0.1:4222"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | Path | None = None
    credentials_file: str | None = None
    inbox_prefix: str | None = None
    domain: str | None = DOMAIN
    tls: Tls = field(default_factory=Tls)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 5.0

    def bus_settings(self, name: str) -> BusSettings:
        password = self.password
        if self.password_file is not None:
            password = Path(self.password_file).read_text().strip()
        own = inbox_prefix(self.user) if self.user else "_INBOX"
        return BusSettings(
            url=self.url,
            name=name,
            user=self.user,
            password=password,
            credentials_file=self.credentials_file,
            inbox_prefix=self.inbox_prefix or own,
            tls=self.tls,
            connect_timeout_s=self.connect_timeout_s,
            publish_timeout_s=self.request_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and times of a subscriber.

    `concurrency` is the number of events that are handled at once; events of one run are always
    handled one after another. `retry_delays_s` has the seconds to wait after each failure of a
    handler. With n delays, the event is given up after n + 1 failures. When the subscriber stops,
    handlers have `grace_s` seconds to finish. `look_s` is the number of seconds between two checks
    for new shards.
    """

    concurrency: int = 1
    retry_delays_s: Sequence[float] = (1, 5, 30, 120, 600)
    grace_s: float = 20.0
    look_s: float = 10.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be 1 or more")
        if any(delay_s <= 0 for delay_s in self.retry_delays_s):
            raise ValueError("retry_delays_s must be seconds above 0")
