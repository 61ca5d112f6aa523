"""Opens TCP connections to the servers of requests."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias

# The seconds after which the next address is tried, even if the attempts with earlier addresses
# have not ended (RFC 8305). If each address were tried alone, an IPv6 address that does not answer
# would use up the whole connect timeout.
STAGGER_S: Final = 0.25


class Address(NamedTuple):
    """A socket address, with the family of sockets that it needs."""

    family: int
    sockaddr: Any

    @property
    def ip(self) -> str:
        return str(self.sockaddr[0])


Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[Address]]]


async def dial(host: str, port: int, resolve: Resolve) -> socket.socket:
    """Connect to the first address of the host that answers, and return the socket. Without one,
    the text of the OSError has no address, because clients may see it."""
    addresses = await resolve(host, port)
    if len(addresses) == 1:
        return await _connect(addresses[0])
    attempts: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    remaining = iter(addresses)
    try:
        while True:
            address = next(remaining, None)
            if address is not None:
                attempts.add(asyncio.create_task(_connect(address)))
            if not attempts:
                raise OSError(_joined(failures))
            wait_s = STAGGER_S if address is not None else None
            done, attempts = await asyncio.wait(
                attempts, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                if (error := attempt.exception()) is None:
                    done.discard(attempt)
                    attempts |= done  # another attempt may have connected at the same moment
                    return attempt.result()
                failures.append(error)
    finally:
        await _give_up(attempts)


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of the host, those of IPv4 and IPv6 in turn. Decimal, hexadecimal and
    short forms of IPv4 addresses are resolved, too. OSError means that the host has no address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [Address(family, (host, port))]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"its name cannot be resolved: {error.strerror}") from error
    if not found:
        raise OSError("its name has no address")
    addresses = dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in found)
    first = found[0][0]
    return list(
        _alternating(
            [each for each in addresses if each.family == first],
            [each for each in addresses if each.family != first],
        )
    )


def _alternating(some: list[Address], others: list[Address]) -> Iterable[Address]:
    pairs = chain.from_iterable(zip_longest(some, others))
    return (each for each in pairs if each is not None)


async def _connect(address: Address) -> socket.socket:
    made = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, address.sockaddr)
    except OSError as error:
        made.close()
        raise OSError(os.strerror(error.errno) if error.errno else str(error)) from error
    except BaseException:
        made.close()
        raise
    return made


async def _give_up(attempts: set[asyncio.Task[socket.socket]]) -> None:
    for attempt in attempts:
        attempt.cancel()
    if attempts:
        await asyncio.wait(attempts)
    for attempt in attempts:
        if not attempt.cancelled() and attempt.exception() is None:
            attempt.result().close()


def _joined(failures: Iterable[BaseException]) -> str:
    return "; ".join(dict.fromkeys(map(str, failures)))
