"""Defines the settings of the connection to NATS."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.bus.connection.clock import LIMIT_S
from penstock.bus.streams import Retention


class TlsRefused(Exception):
    """The certificate files cannot be used. The text names the setting."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The paths of the PEM files for TLS.

    `ca` is the authority that signed the servers' certificates, and replaces the system's
    authorities. `cert` is the certificate that this client presents. `key` is the private key of
    this certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def context(self, servers: Sequence[str]) -> ssl.SSLContext | None:
        """Return the connection's TLS context; None when neither a file nor a URL requires TLS.
        Raises TlsRefused if a file is missing, is unreadable, or is not a PEM file of the expected
        kind."""
        asked = self.ca or self.cert or self.key
        if not asked and not any(url.startswith("tls://") for url in servers):
            return None
        if bool(self.cert) != bool(self.key):
            raise TlsRefused("PENSTOCK_NATS_TLS_CERT and PENSTOCK_NATS_TLS_KEY: set both")
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # the base class of SSLError
            raise TlsRefused(_unusable("PENSTOCK_NATS_TLS_CA", self.ca, error)) from error
        if self.cert and self.key:
            try:
                # Without this empty passphrase, OpenSSL would ask for a passphrase on the terminal.
                context.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except OSError as error:
                files = f"{self.cert} and {self.key}"
                setting = "PENSTOCK_NATS_TLS_CERT and PENSTOCK_NATS_TLS_KEY"
                raise TlsRefused(_unusable(setting, files, error)) from error
        return context


def _unusable(setting: str, file: str | None, error: OSError) -> str:
    reason = "no PEM file of that kind" if isinstance(error, ssl.SSLError) else error.strerror
    return f"{setting}: cannot use {file}: {reason}"


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
    not subscribe to it. `content_keys`: the operator's keys (see `sealing.MasterKeys`).
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
    content_keys: tuple[str, ...] = field(default=(), repr=False)
    repairs: bool = False
