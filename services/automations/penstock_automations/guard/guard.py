"""Resolves the hosts of webhooks to addresses that webhooks may reach, and refuses all others.

A connection is made to an address that was checked, and not to the name. So a name server cannot
get around the check by giving another address a moment later (DNS rebinding). TLS still uses the
URL's host name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import httpx

from penstock.http import dialing
from penstock.http.dialing import Address, Resolve
from penstock_automations.guard.addresses import (
    Network,
    address_of,
    is_forbidden,
    literal,
    parse_networks,
)

MAX_ADDRESSES = 4  # the greatest number of addresses of a name that are tried


class AddressRefused(httpx.ConnectError):
    """The host has an address that webhooks must not reach, or a scheme that is not allowed."""


class Guard:
    """Refuses addresses that are not public, except the hosts and networks that settings allow."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        networks: Iterable[str] = (),
        resolve: Resolve = dialing.resolve,
    ) -> None:
        self._hosts = frozenset(host.strip().lower().rstrip(".") for host in hosts)
        self._networks: tuple[Network, ...] = parse_networks(networks)
        self._resolve = resolve

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        """Return up to four addresses of the host.

        Raises:
            AddressRefused: the host has a forbidden address.
            OSError: the host has no address.
        """
        addresses = await self._resolve(host, port)
        self.check(host, [each.ip for each in addresses])
        return addresses[:MAX_ADDRESSES]

    def check_scheme(self, scheme: str, host: str) -> None:
        """Raise AddressRefused for plain HTTP to a host that is not allowed by name or address."""
        if scheme == "https" or self._is_allowed(host):
            return
        raise AddressRefused(
            f"{scheme}://{host}: webhooks use https; an operator can allow this host "
            "(PENSTOCK_WEBHOOK_ALLOW_HOSTS)"
        )

    def check(self, host: str, addresses: Sequence[str]) -> None:
        """Raise AddressRefused if any of the host's addresses is forbidden."""
        if host.lower().rstrip(".") in self._hosts:
            return
        for address in addresses:
            if is_forbidden(address_of(address), self._networks):
                # The text does not contain the address, so that the author of a rule does not learn
                # how names of the internal network are resolved.
                raise AddressRefused(
                    f"{host} has an address that is not public; an operator can allow the host or "
                    "its network (PENSTOCK_WEBHOOK_ALLOW_HOSTS, PENSTOCK_WEBHOOK_ALLOW_NETWORKS)"
                )

    def check_url(self, url: str) -> None:
        """Raise AddressRefused for a URL that the guard would refuse at every connection.

        With this check, the author of a rule learns of the refusal when the rule is written. Each
        connection is checked, too, because the address of a name is only known then.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        self.check_scheme(parts.scheme, host)
        address = literal(host.rstrip("."))
        if address is not None:
            self.check(host, [str(address)])
        elif host.rstrip(".").endswith("localhost"):
            self.check(host, ["127.0.0.1"])

    def _is_allowed(self, host: str) -> bool:
        if host.lower().rstrip(".") in self._hosts:
            return True
        try:
            address = address_of(host.strip("[]"))
        except ValueError:
            return False
        return any(address in each for each in self._networks if each.version == address.version)
