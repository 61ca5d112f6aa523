"""Resolves the hosts of webhooks to addresses that webhooks may reach, and refuses all others.

A connection is made to an address that was checked, and not to the name. So a name server cannot
get around the check by giving another address a moment later (DNS rebinding). TLS still uses the
URL's host name.

`ipaddress` alone is not enough: Python 3.11 calls 192.0.0.192, 2002:7f00:1:: and 224.0.0.1 global.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import inet_aton
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import httpx

from penstock.http import dialing
from penstock.http.dialing import Address, Resolve

IPAddress: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

MAX_ADDRESSES = 4  # the greatest number of addresses of a name that are tried
# The only IPv6 network with public addresses. All other addresses are reserved, or have a special
# meaning: loopback, link-local, site-local, NAT64, IPv4-translated, segment routing.
_PUBLIC_IPV6: Final = IPv6Network("2000::/3")
# Networks within the public range that are not public, or whose addresses contain other addresses.
_FORBIDDEN: Final[tuple[Network, ...]] = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments; clouds use some of these addresses for metadata
            "192.88.99.0/24",  # 6to4 relays
            "2001::/23",  # protocol assignments, and Teredo, which contains an IPv4 address
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: contains an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of a setting. Raises ValueError for a text that is no network."""
    return tuple(ip_network(text.strip(), strict=False) for text in texts)


def address_of(text: str) -> IPAddress:
    """Return the address of a text, which may end in an IPv6 zone such as `%eth0`. An IPv4-mapped
    IPv6 address becomes its IPv4 address. Raises ValueError."""
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def literal(host: str) -> IPAddress | None:
    """Return the address that a URL has as its host; None if the host is a name.

    Decimal, hexadecimal and short forms of IPv4, such as `2130706433` and `127.1`, are addresses,
    because the system's resolver accepts them.
    """
    try:
        return address_of(host)
    except ValueError:
        pass
    try:
        return IPv4Address(inet_aton(host))
    except (OSError, ValueError):
        return None


def is_forbidden(address: IPAddress, allowed: Iterable[Network] = ()) -> bool:
    if any(address in network for network in allowed if network.version == address.version):
        return False
    if isinstance(address, IPv6Address) and (
        address.scope_id is not None or address not in _PUBLIC_IPV6
    ):
        return True
    return (
        not address.is_global
        or address.is_multicast
        or any(address in network for network in _FORBIDDEN if network.version == address.version)
    )


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
        """Return up to four addresses of the host. Raises AddressRefused, and OSError for none."""
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
