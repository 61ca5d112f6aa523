"""No webhook reaches an address that is not public. The backend records what it would dial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest

from penstock.http import dialing
from penstock.http.dialing import Address, Resolve
from penstock_automations.actions.webhook.exchange import Answer, NoAnswer, Sender
from penstock_automations.guard import AddressRefused, Guard

PUBLIC = "93.184.215.14"

# Each host, or the address that the name server gives for it.
FORBIDDEN = {
    "loopback": "127.0.0.1",
    "another loopback": "127.8.8.8",
    "this machine": "0.0.0.0",
    "private, class A": "10.0.0.7",
    "private, class B": "172.16.3.4",
    "private, class C": "192.168.1.1",
    "carrier-grade NAT": "100.64.0.1",
    "link-local metadata": "169.254.169.254",
    "metadata of a cloud": "192.0.0.192",
    "benchmarking": "198.18.0.1",
    "multicast": "224.0.0.1",
    "broadcast": "255.255.255.255",
    "6to4 relay": "192.88.99.1",
    "IPv6 loopback": "::1",
    "IPv6 unspecified": "::",
    "IPv6 link-local": "fe80::1",
    "IPv6 link-local with a zone": "fe80::1%lo",
    "IPv6 unique local": "fd00::1",
    "IPv6 multicast": "ff02::1",
    "IPv4-mapped": "::ffff:127.0.0.1",
    "IPv4-mapped private": "::ffff:10.0.0.1",
    "IPv4-compatible": "::7f00:1",
    "NAT64": "64:ff9b::7f00:1",
    "local NAT64": "64:ff9b:1::7f00:1",
    "6to4": "2002:7f00:1::",
    "Teredo": "2001:0:7f00:1::",
    "discard": "100::1",
    "documentation": "2001:db8::1",
    "newer documentation": "3fff::1",
    "IPv6 site-local": "fec0::1",
    "IPv6 metadata of a cloud": "fd00:ec2::254",
    "IPv4-mapped metadata": "::ffff:a9fe:a9fe",
    "IPv4-mapped with a zone": "::ffff:127.0.0.1%lo",
    "IPv4-translated": "::ffff:0:127.0.0.1",
    "NAT64 of metadata": "64:ff9b::169.254.169.254",
    "IPv6 protocol assignments": "2001:2::1",
    "segment routing": "5f00::1",
    "IPv6 that nobody has": "4000::1",
    "public IPv6 with a zone": "2606:2800:21f:cb07:6820:80da:af6b:8b2c%eth0",
    "reserved": "240.0.0.1",
    "IPv4 documentation": "203.0.113.1",
}
# Texts that the system's resolver turns into an address of this machine.
DISGUISED = ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "0"]


class Dialled(Exception):
    """Raised in place of a connection."""


@pytest.fixture(autouse=True)
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the addresses to which connections would be made; make none."""
    found: list[str] = []

    async def record(address: Address) -> NoReturn:
        found.append(address.ip)
        raise Dialled(address.ip)

    monkeypatch.setattr(dialing, "_connect", record)
    return found


class Names:
    """A name server; each answer is used once, and the last one again and again."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [Address(0, (ip, port)) for ip in answer]


async def connect(guard: Guard, host: str = "hook.example") -> None:
    with pytest.raises((AddressRefused, Dialled)):
        await dialing.dial(host, 443, guard.resolve)


@pytest.mark.parametrize("address", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_an_address_that_is_not_public_is_not_dialled(
    address: str, dialled: list[str]
) -> None:
    await connect(Guard(resolve=Names([address])))
    assert dialled == []


@pytest.mark.parametrize("address", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_one_forbidden_address_among_public_ones_is_enough(
    address: str, dialled: list[str]
) -> None:
    await connect(Guard(resolve=Names([PUBLIC, address])))
    assert dialled == []


@pytest.mark.parametrize("host", DISGUISED)
async def test_a_disguised_address_is_resolved_and_not_dialled(
    host: str, dialled: list[str]
) -> None:
    with pytest.raises(AddressRefused):
        await dialing.dial(host, 443, Guard().resolve)
    assert dialled == []


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
async def test_a_public_address_is_dialled_itself_and_not_its_name(
    address: str, dialled: list[str]
) -> None:
    await connect(Guard(resolve=Names([address])))
    assert dialled == [address]


async def test_a_name_server_that_rebinds_is_asked_once_for_each_connection(
    dialled: list[str],
) -> None:
    names = Names([PUBLIC], ["127.0.0.1"])
    await connect(Guard(resolve=names))
    assert (dialled, names.asked) == ([PUBLIC], 1)
    await connect(Guard(resolve=names))
    assert dialled == [PUBLIC]


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [(["10.2.3.4"], True), (["fd00::5"], True), (["10.2.3.4", "127.0.0.1"], False)],
)
async def test_an_allowed_network_is_dialled(
    answer: list[str], is_allowed: bool, dialled: list[str]
) -> None:
    await connect(Guard(networks=["10.0.0.0/8", "fd00::/8"], resolve=Names(answer)))
    assert dialled == (answer if is_allowed else [])


@pytest.mark.parametrize("host", ["n8n.internal", "other.internal"])
async def test_an_allowed_host_is_dialled(host: str, dialled: list[str]) -> None:
    await connect(Guard(hosts=["N8N.internal."], resolve=Names(["127.0.0.1"])), host)
    assert dialled == (["127.0.0.1"] if host == "n8n.internal" else [])


def test_plain_http_needs_an_allowed_host() -> None:
    guard = Guard(hosts=["n8n.internal"], networks=["10.0.0.0/8"])
    guard.check_scheme("https", "anything.example")
    guard.check_scheme("http", "n8n.internal")
    guard.check_scheme("http", "10.1.1.1")
    for host in ("anything.example", "127.0.0.1", "[::1]"):
        with pytest.raises(AddressRefused, match="https"):
            guard.check_scheme("http", host)


async def test_a_refusal_does_not_tell_the_address() -> None:
    with pytest.raises(AddressRefused) as refused:
        Guard().check("db.internal", ["10.11.12.13"])
    assert "10.11.12.13" not in str(refused.value)


async def sent(url: str, resolve: Resolve = dialing.resolve) -> Answer | NoAnswer:
    return await Sender(Guard(resolve=resolve)).send(url, {}, b"{}", 5)


HOSTS = [f"[{each}]" if ":" in each else each for each in FORBIDDEN.values() if "%" not in each]


@pytest.mark.parametrize("host", [*HOSTS, *DISGUISED, "LOCALHOST", "127.0.0.1."])
async def test_an_address_in_a_url_is_not_dialled(host: str, dialled: list[str]) -> None:
    for url in (f"https://{host}/hook", f"https://{host}:8443/hook"):
        answer = await sent(url)
        assert isinstance(answer, NoAnswer)
        assert answer.code == "refused_address" or host not in HOSTS
    assert dialled == []


async def test_each_attempt_asks_the_name_server_again_and_dials_what_was_checked(
    dialled: list[str],
) -> None:
    names = Names([PUBLIC], ["10.0.0.7"], [PUBLIC, "::1"])
    with pytest.raises(Dialled):
        await sent("https://hook.example/", names)
    for _ in range(2):
        answer = await sent("https://hook.example/", names)
        assert isinstance(answer, NoAnswer)
        assert answer.code == "refused_address"
    assert dialled == [PUBLIC]


@pytest.mark.parametrize("host", [*FORBIDDEN.values(), *DISGUISED, "x.localhost", "127.0.0.1."])
def test_a_url_with_a_literal_address_is_refused_when_the_rule_is_written(host: str) -> None:
    url = f"https://[{host}]/" if ":" in host else f"https://{host}/"
    with pytest.raises(AddressRefused, match="not public"):
        Guard().check_url(url)


@pytest.mark.parametrize("url", ["https://x.example/", f"https://{PUBLIC}/", "https://1e100.net/"])
def test_a_url_with_a_public_address_or_a_name_may_be_written(url: str) -> None:
    Guard().check_url(url)


def test_what_an_operator_allows_may_be_written_also_without_tls() -> None:
    guard = Guard(["n8n", "127.0.0.1"], ["10.1.0.0/16"])
    for url in ("http://n8n/x", "http://127.0.0.1:9/", "http://10.1.2.3/", "https://10.1.2.3/"):
        guard.check_url(url)
    for url in ("http://x.example/", "https://10.2.0.1/", "https://127.0.0.2/"):
        with pytest.raises(AddressRefused):
            guard.check_url(url)
