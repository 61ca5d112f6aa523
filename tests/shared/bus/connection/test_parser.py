"""The parser gives every message once and in order for any chunking, and rejects bad bytes."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from penstock.bus.connection.incoming import Headers, Incoming, fields
from penstock.bus.connection.protocol import CLOCK_EVERY, Parser

NEVER = float("inf")


class Parsed:
    """Run a parser and collect the messages and lines that it gives."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes, bytes, bytes, bytes]] = []
        self.lines: list[bytes] = []
        self.parser = Parser(lambda *message: self.messages.append(message), self.lines.append)

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.parser.feed(piece)
            assert not self.parser.parse(NEVER)


BLOCK = b"NATS/1.0\r\na: b\r\n\r\n"
STREAM = (
    b'INFO {"x": 1}\r\n'
    b"MSG a.b 1 5\r\nhe\r\no\r\n"
    b"MSG a.b 2 reply.to 0\r\n\r\n"
    b"PING\r\n"
    b"HMSG c 3 %d %d\r\n%bpayload\r\n"
    % (len(BLOCK), len(BLOCK) + 7, BLOCK)
    + b"HMSG c 3 r %d %d\r\n%b\r\n" % (len(BLOCK), len(BLOCK), BLOCK)
    + b"PONG\r\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_messages_and_lines_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    parsed = Parsed()
    parsed.feed(*(STREAM[a:b] for a, b in itertools.pairwise(ends)))
    assert parsed.messages == [
        (1, b"a.b", b"", b"", b"he\r\no"),
        (2, b"a.b", b"reply.to", b"", b""),
        (3, b"c", b"", BLOCK, b"payload"),
        (3, b"c", b"r", BLOCK, b""),
    ]
    assert parsed.lines == [b'INFO {"x": 1}', b"PING", b"PONG"]


def test_a_large_message_in_many_pieces_is_not_copied_with_each_piece() -> None:
    """A copy for each piece would copy 2,000 times the message's size."""
    size = 8 * 1024 * 1024
    parsed = Parsed()
    parsed.feed(b"MSG a 1 %d\r\n" % size)
    begun = time.process_time()
    for _ in range(size // 4096):
        parsed.parser.feed(bytes(4096))
        parsed.parser.parse(NEVER)
    assert parsed.parser._rest == b"MSG a 1 %d\r\n" % size
    parsed.feed(b"\r\n")
    assert len(parsed.messages[0][4]) == size
    assert time.process_time() - begun < 5


def test_a_long_burst_is_parsed_in_slices_and_in_order() -> None:
    parsed = Parsed()
    count = 10 * CLOCK_EVERY + 3
    parsed.parser.feed(b"".join(b"MSG a %d 0\r\n\r\n" % n for n in range(count)))
    slices = 1
    while parsed.parser.parse(until=0.0):  # the deadline has passed at every look at the clock
        assert len(parsed.messages) == slices * CLOCK_EVERY
        slices += 1
    assert slices == 11
    assert [message[0] for message in parsed.messages] == [*range(count)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"MSG a 1 -5\r\n",
        b"MSG a 1 x\r\n",
        b"MSG 5\r\n\r\n\r\n\r\n\r\n",
        b"HMSG a 1 5 3\r\nabcde\r\n",
        b"HMSG a 1 -1 3\r\nabcde\r\n",
        bytes(1024 * 1024 + 1),
    ],
)
def test_bytes_of_another_protocol_are_refused(garbage: bytes) -> None:
    parsed = Parsed()
    parsed.parser.feed(garbage)
    with pytest.raises(ProtocolError):
        parsed.parser.parse(NEVER)
    assert not parsed.messages


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"", {}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0\r\na: b\r\nC:d \r\ne: f: g\r\n\r\n", {"a": "b", "C": "d", "e": "f: g"}),
        (b"NATS/1.0\r\na: \xc3\xa4\r\nb: \xff\r\n\r\n", {"a": "ä", "b": "�"}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 7\r\n\r\n",
            {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Stream": "7"},
        ),
        (b"NATS/1.0\r\na: 1\r\nb: x: y\r\n\r\n", {"a": "1", "b": "x: y"}),
        (b"NATS/1.0\r\na: 1 \r\nb:  2\r\n\r\n", {"a": "1", "b": "2"}),
        (b"NATS/1.0\r\na:1\r\nb: 2\r\n\r\n", {"a": "1", "b": "2"}),
        (b"NATS/1.0\r\na: 1\r\nno colon\r\n\r\n", {"a": "1"}),
        (b"NATS/1.0\r\na: \xff\r\n\r\n", {"a": "\ufffd"}),
        (b"NATS/1.0\r\na: 1\r\na: 2\r\n\r\n", {"a": "2"}),
    ],
)
def test_headers_and_status_lines_are_read(block: bytes, headers: dict[str, str]) -> None:
    assert fields(block) == headers
    assert Incoming(b"a", b"", block, b"").headers == headers
    assert Headers(block) == headers
    assert {name: Headers(block)[name] for name in headers} == headers
    assert Headers(block).get("none") is None


REPUBLISHED = (
    b"NATS/1.0\r\nPenstock-Sequence: 7\r\nce-id: r.7\r\nNats-Stream: EVENTS\r\n"
    b"Nats-Subject: llm.stream.r\r\nNats-Sequence: 41\r\n"
    b"Nats-Time-Stamp: 2026-11-22T10:00:00Z\r\nNats-Last-Sequence: 40\r\n\r\n"
)


def test_a_republished_message_is_the_stored_message() -> None:
    stream, stored = Incoming(b"live.llm.stream.r", b"", REPUBLISHED, b"{}").republished()
    assert (stream, stored.subject, stored.sequence) == ("EVENTS", "llm.stream.r", 41)
    assert stored.payload == b"{}"
    assert stored.headers == fields(REPUBLISHED)


def test_a_republished_message_may_have_its_headers_in_any_order() -> None:
    first, *lines = REPUBLISHED.removesuffix(b"\r\n\r\n").split(b"\r\n")
    block = b"\r\n".join([first, *sorted(lines), b"", b""])
    usual = Incoming(b"live.llm.stream.r", b"", REPUBLISHED, b"{}").republished()
    assert Incoming(b"live.llm.stream.r", b"", block, b"{}").republished() == usual


def test_a_publisher_cannot_change_the_position_of_a_republished_message() -> None:
    """The server appends its own headers after those of the publisher."""
    forged = b"Nats-Stream: RAW\r\nNats-Subject: a.b.c\r\nNats-Sequence: 1\r\n"
    block = REPUBLISHED.replace(b"NATS/1.0\r\n", b"NATS/1.0\r\n" + forged)
    usual = Incoming(b"live.llm.stream.r", b"", REPUBLISHED, b"{}").republished()
    found = Incoming(b"live.llm.stream.r", b"", block, b"{}").republished()
    assert found[0] == usual[0]
    assert (found[1].subject, found[1].sequence) == ("llm.stream.r", 41)


@pytest.mark.parametrize("block", [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\na: b\r\n\r\n"])
def test_a_message_that_was_not_republished_is_refused(block: bytes) -> None:
    with pytest.raises(KeyError):
        Incoming(b"live.llm.stream.r", b"", block, b"{}").republished()
