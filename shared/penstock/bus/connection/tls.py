"""Makes the TLS context for NATS from the trusted authority and this client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass


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

        Raises:
            TlsRefused: a file is missing, is unreadable, or is not a PEM file of the expected kind.
        """
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
