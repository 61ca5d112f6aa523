"""The client writes commands as NATS defines them, and no argument can inject a second command."""

from __future__ import annotations

import pytest
from nats.errors import BadHeaderError, BadSubjectError

from penstock.bus.connection.incoming import fields
from penstock.bus.connection.protocol import header_block, publication, subscription
from penstock.bus.messages import header_lines


def test_a_publication_is_as_nats_defines_it() -> None:
    assert publication("a.b", "", b"xyz", None) == b"PUB a.b  3\r\nxyz\r\n"
    assert publication("a", "r", b"", {}) == b"PUB a r 0\r\n\r\n"
    block = b"NATS/1.0\r\nk: v\r\n\r\n"
    assert publication("a", "r", b"xy", {"k": "v"}) == b"HPUB a r %d %d\r\n%bxy\r\n" % (
        *(len(block), len(block) + 2),
        block,
    )


def test_headers_that_are_encoded_already_are_sent_as_they_are() -> None:
    headers = {"a": "b", "c": "ä"}
    coded = publication("s", "r", b"xy", header_lines(headers))
    assert coded == publication("s", "r", b"xy", headers)


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0\r\n", "a\tb", "a\n"])
def test_a_subject_with_a_space_or_a_newline_is_refused(subject: str) -> None:
    with pytest.raises(BadSubjectError):
        publication(subject, "", b"", None)
    with pytest.raises(BadSubjectError):
        subscription(subject, "", 1)
    if subject:
        with pytest.raises(BadSubjectError):
            publication("a", subject, b"", None)
        with pytest.raises(BadSubjectError):
            subscription("a", subject, 1)


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "ä"])
def test_a_headers_name_has_the_characters_that_http_allows(name: str) -> None:
    with pytest.raises(BadHeaderError):
        header_block({"ok": "1", name: "2"})


@pytest.mark.parametrize("value", ["1\r\nPUB x 0", "1\n2: 3", "1\r2", "\r\n\r\n", "1\r\n", "ä: ö"])
def test_a_headers_value_stays_one_value(value: str) -> None:
    block = header_block({"a": value, "b": "c"})
    assert block.count(b"\r\n") == 4
    expected = value.replace("\r", " ").replace("\n", " ").strip()
    assert fields(block) == {"a": expected, "b": "c"}
