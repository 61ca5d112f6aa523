"""The environment sets the edge's settings."""

from __future__ import annotations

import pytest

from penstock.settings import Settings
from penstock_edge.settings import EdgeSettings

FLAG = "ENABLE_ADK_CANONICAL_STREAM"


@pytest.mark.parametrize("word", ["true", "TRUE", "True", "1", "yes", "Yes", "on", " on "])
def test_the_flag_is_on_for_the_usual_words_in_any_case(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(FLAG, word)
    assert EdgeSettings().enable_adk_canonical_stream


@pytest.mark.parametrize("word", ["false", "0", "", "off", "maybe", None])
def test_the_flag_is_off_for_anything_else(
    monkeypatch: pytest.MonkeyPatch, word: str | None
) -> None:
    monkeypatch.delenv(FLAG, raising=False)
    if word is not None:
        monkeypatch.setenv(FLAG, word)
    assert not EdgeSettings().enable_adk_canonical_stream


def test_what_is_common_is_handed_on_and_what_is_its_own_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FLAG, "true")
    monkeypatch.setenv("PENSTOCK_KEEP_ALIVE_S", "3")
    own = EdgeSettings(**Settings(port=1234).model_dump())
    assert (own.port, own.keep_alive_s, own.enable_adk_canonical_stream) == (1234, 3.0, True)


@pytest.mark.parametrize("wrong", ["javascript:alert({trace_id})", "https://traces.example/", ""])
def test_an_address_of_traces_is_one_of_the_web_and_has_a_place_for_the_id(wrong: str) -> None:
    with pytest.raises(ValueError, match="trace_url"):
        EdgeSettings(trace_url=wrong)
