"""The parser reads `text/event-stream` as the WHATWG specification says, in any chunking."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sse import Frame, FrameTooLarge, Parser, comment, encode

LINE_ENDS = [b"\n", b"\r", b"\r\n"]
# Characters at which line iterators split and `text/event-stream` does not.
FALSE_LINE_ENDS = "\u2028\u2029\u0085\x0b\x0c\x1c"


def frames_of(chunks: Iterable[bytes], max_frame_bytes: int = 1 << 20) -> list[Frame]:
    parser = Parser(max_frame_bytes)
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    """Return `body` in pieces, cut at each of `places` (taken modulo its length)."""
    marks = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[a:b] for a, b in itertools.pairwise(marks)]


def of(*datas: bytes) -> list[Frame]:
    return [Frame(data) for data in datas]


# Lines with a meaning, each with any line end: random bytes would hardly ever make a frame.
lines = st.sampled_from(
    [
        *[b"", b"data: x", b"data: y", b"data", b"id: 7", b"event: a.b", b"retry: 5", b": ping"],
        *[b"\xef\xbb\xbfdata: z", b"\xef\xbb", b"id: \0", "data: \u2028\u0085".encode()],
    ]
)
bodies = st.lists(st.tuples(lines, st.sampled_from(LINE_ENDS)).map(b"".join), max_size=12).map(
    b"".join
)
places = st.lists(st.integers(min_value=0, max_value=200), max_size=40)
one_line = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))


@pytest.mark.parametrize("end", LINE_ENDS)
def test_every_line_end_ends_a_line(end: bytes) -> None:
    body = end.join([b"id: 7", b"event: a.b", b"retry: 20", b"data: x", b"data: y", b"", b""])
    assert frames_of([body]) == [Frame(b"x\ny", "a.b", "7", 20)]


@pytest.mark.parametrize("end", LINE_ENDS)
def test_a_frame_fed_byte_by_byte_is_the_same_frame(end: bytes) -> None:
    body = end.join([b"data: x", b"data: y", b"", b"data: z", b"", b""])
    assert frames_of(bytes([byte]) for byte in body) == of(b"x\ny", b"z")


@given(body=bodies, at=places)
def test_the_chunking_never_changes_the_frames(body: bytes, at: list[int]) -> None:
    assert frames_of(cut(body, at)) == frames_of([body])


@given(body=bodies, at=places, limit=st.integers(min_value=1, max_value=30))
def test_the_chunking_never_changes_what_a_bounded_reader_gets(
    body: bytes, at: list[int], limit: int
) -> None:
    def read(chunks: list[bytes]) -> tuple[list[Frame], bool]:
        parser, frames = Parser(limit), []
        try:
            for chunk in chunks:
                frames += parser.feed(chunk)
        except FrameTooLarge as error:
            return frames + error.frames, True
        return frames, False

    assert read(cut(body, at)) == read([body])


@given(
    frames=st.lists(st.tuples(st.binary(), st.none() | one_line, st.none() | one_line)),
    at=places,
)
def test_what_was_encoded_parses_back(
    frames: list[tuple[bytes, str | None, str | None]], at: list[int]
) -> None:
    body = b"".join(encode(data, event=event, id=id) for data, event, id in frames)
    expected = [
        Frame(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), event, id)
        for data, event, id in frames
    ]
    assert frames_of(cut(body, at)) == expected


@pytest.mark.parametrize("char", FALSE_LINE_ENDS)
def test_other_unicode_line_breaks_are_data(char: str) -> None:
    data = f"a{char}b".encode()
    assert frames_of([b"data: " + data + b"\n\n"]) == of(data)
    assert encode(data) == b"data: " + data + b"\n\n"


def test_comments_are_no_frames() -> None:
    assert frames_of([b": ping\n\n:\n\ndata: x\n: within\n\n" + comment("keep-alive")]) == of(b"x")


def test_one_blank_after_the_colon_is_not_data_and_a_second_one_is() -> None:
    assert frames_of([b"data:x\n\ndata: x\n\ndata:  x\n\n"]) == of(b"x", b"x", b" x")


def test_a_field_without_a_colon_has_an_empty_value() -> None:
    assert frames_of([b"data\n\ndata\ndata\n\n"]) == of(b"", b"\n")


def test_a_frame_without_data_is_not_dispatched_and_its_fields_do_not_leak() -> None:
    assert frames_of([b"event: a\nid: 1\n\ndata: x\n\n"]) == of(b"x")


def test_unknown_fields_a_nul_in_an_id_and_a_bad_retry_are_ignored() -> None:
    bad_retry = b"retry: 1x\nretry:\nretry: " + b"9" * 5000 + b"\n"
    assert frames_of([b"foo: 1\nid: a\0b\n" + bad_retry + b"data: x\n\n"]) == of(b"x")


def test_an_unfinished_frame_is_not_dispatched() -> None:
    parser = Parser()
    assert parser.feed(b"data: x\n") == []
    assert not parser.is_at_boundary


def test_a_byte_order_mark_is_skipped_once_at_the_start() -> None:
    bom = b"\xef\xbb\xbf"
    assert frames_of([bom[:1], bom[1:2], bom[2:] + b"data: x\n\n"]) == of(b"x")
    assert frames_of([bom + bom + b"data: x\n\ndata: y\n\n"]) == of(b"y")
    assert frames_of([b"data: x\n\n", bom + b"data: y\n\n"]) == of(b"x")


def test_the_boundary_is_known_between_frames_only() -> None:
    parser = Parser()
    assert parser.is_at_boundary
    parser.feed(b"data: x")
    assert not parser.is_at_boundary
    parser.feed(b"\r\n\r")
    assert parser.is_at_boundary
    parser.feed(b"\n")
    assert parser.is_at_boundary


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert frames_of([b"data: 1234\n\n" * 3], max_frame_bytes=11) == of(*[b"1234"] * 3)
    with pytest.raises(FrameTooLarge, match="larger than 10 bytes") as caught:
        frames_of([b"data: 123\n\n" * 2 + b"data: 1234\n\n"], max_frame_bytes=10)
    assert caught.value.limit_bytes == 10
    assert caught.value.frames == of(b"123", b"123")


def test_a_line_in_pieces_counts_once() -> None:
    pieces = [b"data: 1", b"2", b"3", b"4\n", b"\n"]
    assert frames_of(pieces, max_frame_bytes=11) == of(b"1234")


def test_an_endless_line_is_refused_before_its_end() -> None:
    with pytest.raises(FrameTooLarge):
        frames_of([b"x" * 100] * 11, max_frame_bytes=1000)


def test_a_frame_is_written_as_the_specification_shows_it() -> None:
    assert encode(b"1\n2\r\n3", event="a.b", id="7-0") == (
        b"event: a.b\ndata: 1\ndata: 2\ndata: 3\nid: 7-0\n\n"
    )
    assert encode(b"1", event="a.b", id="7-0", id_first=True) == (
        b"id: 7-0\nevent: a.b\ndata: 1\n\n"
    )
    assert comment("keep-alive") == b": keep-alive\n\n"


def test_a_cut_leaves_no_id_whose_data_have_not_arrived() -> None:
    frame = encode(b"first\nsecond", event="a.b", id="7-0")
    for end in range(len(frame)):
        if b"\nid: 7-0" in frame[:end]:
            assert frame[:end].count(b"\ndata: ") == 2


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b"])
def test_an_event_name_or_id_cannot_forge_a_field(text: str) -> None:
    with pytest.raises(ValueError, match="must be one line"):
        encode(b"", event=text)
    with pytest.raises(ValueError, match="must be one line"):
        encode(b"", id=text)


def test_a_large_frame_is_copied_once_as_it_is_encoded() -> None:
    data = b"x" * (4 * 1024 * 1024)
    tracemalloc.start()
    try:
        encode(data, event="e", id="1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(data)
