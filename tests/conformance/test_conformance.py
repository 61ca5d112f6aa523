"""The tables have no gaps, every test that they name exists, and the page is up to date."""

from __future__ import annotations

import pytest

from conformance.rows import Document, Verdict, holds
from conformance.tables import (
    DOCUMENTS,
    PAGE,
    known,
    page,
    read_tests,
    unknown,
    without_a_real_path,
)

# The number of statements that each document makes.
STATEMENTS = {"EX": 42, "UN": 51, "AG": 59, "AD": 71, "AR": 43, "VE": 19, "AA": 23, "OA": 21}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.prefix)


def test_all_documents_are_there() -> None:
    assert [document.prefix for document in DOCUMENTS] == list(STATEMENTS)
    assert sum(STATEMENTS.values()) == 329


@each_document
def test_every_statement_is_there_once_and_in_order(document: Document) -> None:
    numbers = range(1, STATEMENTS[document.prefix] + 1)
    assert [row.id for row in document.rows] == [f"{document.prefix}{n}" for n in numbers]


@each_document
def test_every_test_of_a_statement_is_there_and_runs(document: Document) -> None:
    assert {row.id: names for row in document.rows if (names := unknown(row))} == {}


@each_document
def test_every_example_has_a_test(document: Document) -> None:
    names = [example.name for example in document.examples]
    assert len(names) == len(set(names))
    assert all(example.tests for example in document.examples)
    assert {each.name: names for each in document.examples if (names := unknown(each))} == {}


@each_document
def test_what_holds_is_shown_and_what_does_not_says_why(document: Document) -> None:
    for row in document.rows:
        if row.verdict in (Verdict.HOLDS, Verdict.OTHERWISE):
            assert row.tests, row.id
        if row.verdict is not Verdict.HOLDS:
            assert row.note, row.id
        assert len(row.tests) == len(set(row.tests)), row.id


@each_document
def test_what_holds_is_shown_from_an_agent_servers_bytes_on(document: Document) -> None:
    assert without_a_real_path(document) == []


def test_a_statement_that_only_events_made_by_hand_show_is_found_out() -> None:
    path = "tests/shared/dialects/test_unified_encode.py"
    source = b"""
def test_by_hand():
    assert encoded(run(("lifecycle.failed", {})))
def test_over_all(recorded_run): ...
def test_one():
    encoded(recorded("agno/x"))
"""
    assert [test.by_hand for test in read_tests(path, source)] == [True, False, False]
    by_hand = "dialects/executions_encode::started_and_cancelled_have_no_source"
    half = "dialects/agno_decode::a_repeated_call_id_is_made_unique_also_across_legs"
    rows = (holds("AR1", "so it is", by_hand), holds("AR2", "and this", half))
    assert without_a_real_path(Document("d", "AR", "", rows, ())) == ["AR1", "AR2"]
    assert without_a_real_path(Document("d", "AG", "", rows, ())) == ["AR1"]


def test_a_name_without_a_test_is_found_out() -> None:
    there = "conformance/conformance::a_name_without_a_test_is_found_out"
    assert unknown(holds("X1", "so it is", there, f"{there}_not")) == [f"{there}_not"]


def test_a_test_that_never_runs_is_found_out() -> None:
    source = b"""
@pytest.mark.skip(reason="later")
def test_marked(): ...
async def test_in_words():
    pytest.skip("later")
@pytest.mark.skipif(sys.platform == "win32", reason="there")
def test_sometimes(): ...
"""
    assert [test.skipped for test in read_tests("x", source)] == [True, True, False]
    marked = b"pytestmark = [pytest.mark.skip]\n" + source
    assert all(test.skipped for test in read_tests("x", marked))


def test_no_test_is_there_that_never_runs() -> None:
    assert not any(test.skipped for test in known().values())


def test_the_page_is_what_the_tables_say() -> None:
    """If this test fails, run `make contract`: the tables have changed."""
    assert PAGE.read_text("utf-8") == page()
