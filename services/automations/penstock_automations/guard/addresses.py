"""Which addresses a webhook must not reach. Pure.

`ipaddress` alone is not enough: Python 3.11 calls 192.0.0.192, 2002:7f00:1:: and 224.0.0.1 global.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import inet_aton
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

# Networks that are not public, or in which an address contains another address.
_FORBIDDEN: Final[tuple[Network, ...]] = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments; clouds use some for metadata
            "192.88.99.0/24",  # 6to4 relays
            "::/96",  # IPv4-compatible: contains an IPv4 address
            "64:ff9b::/96",  # NAT64: contains an IPv4 address
            "64:ff9b:1::/48",  # local NAT64
            "100::/64",  # discarded
            "2001::/32",  # Teredo: contains an IPv4 address
            "2002::/16",  # 6to4: contains an IPv4 address
        ),
    )
)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of a setting. Raises ValueError for a text that is no network."""
    return tuple(ip_network(text.strip(), strict=False) for text in texts)


def address_of(text: str) -> Address:
    """Return the address, with an IPv4 address that IPv6 wraps taken out of it.

    `text` may end in an IPv6 zone, such as `%eth0`.

    Raises:
        ValueError: the text is no address.
    """
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def literal(host: str) -> Address | None:
    """Return the address that a URL's host is; None if the host is a name.

    Decimal, hexadecimal and short forms of IPv4, such as `2130706433` and `127.1`, are addresses,
    since the resolver of the system takes them for such.
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
    """Return whether no webhook may reach the address; an address in `allowed` may be reached."""
    if any(address in network for network in allowed if network.version == address.version):
        return False
    return (
        not address.is_global
        or address.is_multicast
        or any(address in network for network in _FORBIDDEN if network.version == address.version)
    )
