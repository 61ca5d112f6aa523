"""Makes the connection: the first attempts, the checks of the server, the reasons of failures."""

from __future__ import annotations

import logging
import re
import time
from asyncio import timeout
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import cache
from importlib.metadata import version

from nats.errors import Error as NatsError

from penstock.bus.connection.health import advice_on
from penstock.bus.connection.jetstream import JetStream
from penstock.bus.connection.nats_client import Connection
from penstock.bus.connection.settings import BusSettings, TlsRefused
from penstock.bus.errors import BusError, NotThereYet, StartUpError, refusal

log = logging.getLogger(__name__)

# The release of nats-py whose private names `Connection` uses. A later release may change these
# names.
NATS_PY = "2.16"
# the oldest usable nats-server: the first version with atomic batches and scheduled messages
MIN_SERVER = (2, 12)
# The least `max_payload` that a server must have. Parts and records have up to 512 KiB, and headers
# in addition.
MIN_PAYLOAD_BYTES = 1024 * 1024
PING_S = 5  # seconds between two pings, by which a connection notices that it is lost


@cache
def _installed_nats_py() -> str:
    return version("nats-py")


class Link(Enum):
    """The state of the connection."""

    NEW = auto()
    DIALING = auto()  # the first connection is being made
    UP = auto()
    AWAY = auto()  # the connection was lost, and nats-py is trying to reconnect


class Dialer:
    """Makes the connection, and remembers why the connection is away."""

    def __init__(self, settings: BusSettings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._link = Link.NEW
        self._troubles: list[str] = []  # errors since the connection was last up
        self._away_since: float | None = None

    @property
    def where(self) -> str:
        return re.sub(r"//[^@/]*@", "//", self._settings.url)

    async def connect(
        self,
        reconnected: Callable[[], Awaitable[None]],
        disconnected: Callable[[], Awaitable[None]],
    ) -> None:
        """Make the first connection; the callbacks are called at every later change of it.

        Raises:
            NotThereYet: no server took the connection within `connect_timeout_s`.
            StartUpError: the servers refuse the connection, or the settings cannot be used.
        """
        if not (found := _installed_nats_py()).startswith(f"{NATS_PY}."):
            raise StartUpError(
                f"nats-py {found} is installed, and Penstock was tried with {NATS_PY} only: "
                f"install nats-py=={NATS_PY}.*"
            )
        settings = self._settings
        self._link = Link.DIALING
        servers = re.findall(r"[^,\s]+", settings.url)
        try:
            context = settings.tls.context(servers)
            self._connection.must_encrypt = context is not None
            async with timeout(settings.connect_timeout_s):
                await self._connection.connect(
                    servers,
                    name=settings.name,
                    user=settings.user,
                    password=settings.password,
                    user_credentials=settings.credentials_file,
                    inbox_prefix=settings.inbox_prefix.encode(),
                    tls=context,
                    ping_interval=PING_S,
                    max_outstanding_pings=2,
                    reconnect_time_wait=0.25,  # type: ignore[arg-type]  # nats-py only sleeps for it
                    max_reconnect_attempts=-1,
                    reconnected_cb=reconnected,
                    disconnected_cb=disconnected,
                    error_cb=self._failed,
                )
        except TimeoutError as error:
            # nats-py retries until the timeout and then raises only a timeout. The errors of the
            # attempts, in `_troubles`, contain the reason.
            raise NotThereYet(self._cannot_connect("; ".join(self._troubles))) from error
        except TlsRefused as error:
            raise StartUpError(f"cannot connect to NATS at {self.where}: {error}") from error
        except (OSError, NatsError, ImportError, ValueError) as error:
            raise StartUpError(self._cannot_connect(str(error))) from error
        self._link = Link.UP

    async def check_server(self, jetstream: JetStream) -> None:
        """Check that the server has what Penstock needs.

        Raises:
            NotThereYet: the server's JetStream does not answer yet.
            StartUpError: the server lacks something. The text contains advice.
        """
        connection = self._connection
        version = connection.connected_server_version
        if (version.major, version.minor) < MIN_SERVER:
            raise StartUpError(
                f"nats-server {version.major}.{version.minor} at {self.where} is too old: "
                f"Penstock needs {MIN_SERVER[0]}.{MIN_SERVER[1]} or later"
            )
        if connection.max_payload < MIN_PAYLOAD_BYTES:
            raise StartUpError(
                f"the NATS server at {self.where} takes messages of {connection.max_payload} "
                f"bytes: set its max_payload to {MIN_PAYLOAD_BYTES} or more (its default is)"
            )
        try:
            await jetstream.api("INFO")
        except BusError as error:
            raise refusal(error)(
                f"the NATS server at {self.where} has no JetStream for this account ({error}): "
                "start it with -js (or `jetstream {}` in its configuration), and allow "
                "the user to publish to $JS.API.>"
            ) from error

    def record_disconnect(self) -> None:
        if self._link is not Link.DIALING:
            self._link = Link.AWAY
        self._away_since = self._away_since or time.monotonic()

    def record_reconnect(self) -> None:
        self._link = Link.UP
        self._away_since = None
        self._troubles.clear()

    @property
    def disconnect_reason(self) -> str:
        """Why NATS is away, for how long, and advice: only for operators, since it contains
        addresses."""
        since = self._away_since
        away = f" for {time.monotonic() - since:.0f} s" if since is not None else ""
        if not self._troubles:
            return f"NATS at {self.where} is away{away}"
        trouble = self._troubles[-1]
        advice = advice_on(trouble, self._settings.user)
        return f"NATS at {self.where} is away{away} ({trouble})" + (f". {advice}" * bool(advice))

    def _cannot_connect(self, reason: str) -> str:
        advice = advice_on(reason, self._settings.user) or (
            "Is it running there, and are the credentials right? (PENSTOCK_NATS_URL)"
        )
        return f"cannot connect to NATS at {self.where}: {reason or 'no answer'}. {advice}"

    async def _failed(self, error: Exception) -> None:
        if not isinstance(error, OSError | NatsError | EOFError):
            log.error("a subscription's callback failed", exc_info=error)
            return
        text = str(error) or type(error).__name__
        if self._link is Link.DIALING and advice_on(text, None):
            # ends the attempts of `connect`, since the server would refuse every attempt
            raise error
        if text not in self._troubles:  # many attempts may fail with the same text
            log.warning("NATS: %s", text)
            self._troubles.append(text)
