"""Makes TCP connections to addresses that webhooks may reach, and refuses all others.

This module resolves the host's name, checks each address, and connects to a checked address. So a
name server cannot get around the check by giving another address a moment later (DNS rebinding).
TLS still uses the URL's host name, since httpcore starts TLS with the name of the origin.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpcore

from penstock_automations.guard.addresses import (
    Network,
    address_of,
    is_forbidden,
    literal,
    parse_networks,
)

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_ADDRESSES = 4  # the greatest number of addresses of a name that are tried


class AddressRefused(httpcore.ConnectError):
    """The host has an address that webhooks must not reach, or a scheme that is not allowed."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the host's addresses. Decimal, hexadecimal and short IPv4 forms are resolved, too.

    Raises:
        OSError: the host has no address.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Guard:
    """Refuses addresses that are not public, except the hosts and networks that settings allow."""

    def __init__(self, hosts: Iterable[str] = (), networks: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.strip().lower().rstrip(".") for host in hosts)
        self._networks: tuple[Network, ...] = parse_networks(networks)

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


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """A network backend that makes only the connections that a guard allows."""

    def __init__(
        self,
        guard: Guard,
        dial: httpcore.AsyncNetworkBackend | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self._guard = guard
        self._dial = dial if dial is not None else httpcore.AnyIOBackend()
        self._resolve = resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve the host, check its addresses, and connect to one of them.

        Raises:
            AddressRefused: the host has a forbidden address.
            httpcore.ConnectError, httpcore.ConnectTimeout: no connection could be made.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host}: the name was not resolved in time") from None
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host}: the name cannot be resolved: {error}") from None
        if not addresses:
            raise httpcore.ConnectError(f"{host}: the name has no address")
        self._guard.check(host, addresses)
        failure: Exception | None = None
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return await self._dial.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refuse every socket of this machine. Raises AddressRefused."""
        raise AddressRefused("webhooks reach no sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
