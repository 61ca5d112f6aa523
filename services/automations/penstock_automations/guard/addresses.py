"""Decides which addresses a webhook must not reach. Pure.

`ipaddress` alone is not enough: Python 3.11 calls 192.0.0.192, 2002:7f00:1:: and 224.0.0.1 global.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import inet_aton
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

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


def address_of(text: str) -> Address:
    """Return the address of a text. An IPv4-mapped IPv6 address becomes its IPv4 address.

    `text` may end in an IPv6 zone, such as `%eth0`, which is a part of the address.

    Raises:
        ValueError: the text is no address.
    """
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def literal(host: str) -> Address | None:
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


def is_forbidden(address: Address, allowed: Iterable[Network] = ()) -> bool:
    """Return whether webhooks must not reach the address, because it is neither public nor
    allowed."""
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
