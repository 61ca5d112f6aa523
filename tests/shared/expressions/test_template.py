"""A template is a text with paths into data; nothing else, so nothing can take long."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.expressions import ExpressionError, MissingField, Template

EVENT: dict[str, Any] = {
    "sequence": 3,
    "data": {
        "tool": "delete_file",
        "args": {"path": "/x", "odd name": True},
        "items": [{"id": "a"}, {"id": "b"}],
        "nothing": None,
        "braces": "{{ event.sequence }}",
    },
}
DATA = {"event": EVENT}


def filled(text: str) -> str:
    return Template.compile(text, ["event"]).fill(DATA)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", ""),
        ("plain } and { and }}", "plain } and { and }}"),
        ("Delete {{ event.data.args.path }}?", "Delete /x?"),
        ("{{event.data.tool}}{{ event . sequence }}", "delete_file3"),
        ("{{ event.data.items[1].id }}", "b"),
        ('{{ event.data.args["odd name"] }}', "true"),
        ("{{ event.data.nothing }}", "null"),
        ("{{ event.data.items }}", '[{"id":"a"},{"id":"b"}]'),
        ("{{ event.data.braces }}", "{{ event.sequence }}"),
        ('{{ "{{" }} event.sequence }}', "{{ event.sequence }}"),
        ("a\n{{\n event.sequence\n}}", "a\n3"),
    ],
)
def test_placeholders_become_values(text: str, result: str) -> None:
    assert filled(text) == result


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ event.sequence }}", 3),
        ("{{ event.data.items }}", [{"id": "a"}, {"id": "b"}]),
        ("{{ event.data.nothing }}", None),
        ("no. {{ event.sequence }}", "no. 3"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_a_placeholder_alone_keeps_the_type_of_its_value(text: str, value: Any) -> None:
    assert Template.compile(text, ["event"]).value(DATA) == value


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("Hi {{ evnt.data }}", "line 1, column 7", "there is no variable 'evnt'"),
        ("Hi\n {{ event.data", "line 2, column 15", "ends with }}"),
        ("{{ }}", "line 1, column 4", "a placeholder is a path"),
        ("{{ event.data + 1 }}", "line 1, column 15", "without operators"),
        ("{{ size(event.data) }}", "line 1, column 4", "there is no variable 'size'"),
        ("{{ event.data[event.sequence] }}", "line 1, column 14", "ends with }}"),
        ("{{ event.data[-1] }}", "line 1, column 14", "ends with }}"),
        ('{{ "\\x" }}', "line 1, column 4", "as in JSON"),
        ("{{ event" + ".x" * 20 + " }}", "line 1, column 4", "at most 20 steps"),
        ("{{ event }}" * 51, "line 1, column 551", "at most 50 placeholders"),
        ("x" * 10_001, "line 1, column 1", "at most 10000 characters"),
    ],
)
def test_what_is_no_template_is_refused_with_its_place(text: str, where: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        Template.compile(text, ["event"])
    assert str(refused.value.position) == where
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    "path",
    [
        *("event.data.nope", "event.data.items[2]", "event.data.items.id", "event.data.tool.x"),
        *("event.data[0]", "event.data.tool[0]", 'event["data "]'),
    ],
)
def test_a_path_that_leads_nowhere_is_a_missing_field(path: str) -> None:
    with pytest.raises(MissingField, match="the data has no event"):
        filled(f"x {{{{ {path} }}}}")


def test_a_result_that_is_too_large_is_refused_before_it_is_made() -> None:
    template = Template.compile("{{ event }}" * 50, ["event"])
    with pytest.raises(ExpressionError, match="larger than 65536 bytes"):
        template.fill({"event": "é" * 20_000})


@given(st.text(alphabet='{} ."[]\\e\nvent0', max_size=60))
def test_any_text_is_a_template_or_is_refused(text: str) -> None:
    with suppress(ExpressionError):
        Template.compile(text, ["event"])


@pytest.mark.parametrize("text", ["{{" * 5000, '{{ "' + "\\" * 9000, "{{ event" + " ." * 4000])
def test_no_text_takes_long(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ExpressionError):
        Template.compile(text, ["event"])
    assert time.process_time() - begun < 1
