"""PENSTOCK_KEEP says for how long each kind is kept, and is refused with the word that is wrong."""

from __future__ import annotations

import pytest

from penstock.bus.streams import Retention
from penstock.durations import text_of
from penstock.service.connecting import retention
from penstock.settings import ConfigurationError, Settings, read_settings
from penstock.settings.keep import DAY_S, KINDS, parse_keep


def test_without_the_setting_streams_keep_what_they_kept_before() -> None:
    assert retention(parse_keep(())) == Retention()


def test_each_kind_has_its_age_and_the_list_of_runs_outlives_events() -> None:
    words = ("raw=6h", "events=90d", "deadletters=10d", "deliveries=2d", "decisions=400d")
    kept = retention(parse_keep((*words, "costs=forever")), replicas=3)
    assert kept == Retention(
        replicas=3,
        raw_max_age_s=6 * 3600,
        events_max_age_s=90 * DAY_S,
        deadletters_max_age_s=10 * DAY_S,
        deliveries_max_age_s=2 * DAY_S,
        decisions_max_age_s=400 * DAY_S,
        costs_max_age_s=0,
        runs_max_age_s=90 * DAY_S,
    )


def test_the_first_entry_that_fits_a_run_counts() -> None:
    keep = parse_keep(("agent:support-eu=3d", "tenant:acme=2h", "agent:support-*=1d"))
    ages = {
        run: early.age_s if (early := keep.early_for(*run)) is not None else None
        for run in (
            ("support-eu", "acme"),
            ("support-us", "acme"),
            ("support-us", None),
            ("sales", "other"),
        )
    }
    assert [*ages.values()] == [3 * DAY_S, 7200, DAY_S, None]
    assert str(keep.early_for("any", "acme")) == "tenant:acme=2h"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("event=7d", "event=7d: write <kind>=<age> with one of the kinds raw, events,"),
        ("events", "events: write <kind>=<age>"),
        ("user:ada=1d", "user:ada=1d: write <kind>=<age>"),
        ("agent:=1d", "agent:=1d: write <kind>=<age>"),
        ("raw=1w", "raw=1w: an age is a number and s, h or d"),
        ("events=6m", "events=6m: m is not taken here: write months as 180d, and minutes as 360s"),
        ("tenant:acme=1m", "tenant:acme=1m: m is not taken here"),
        ("raw=0s", "raw=0s: an age is from 1s to 36500d"),
        ("raw=999999d", "raw=999999d: an age is from 1s to 36500d"),
        ("events=forever", "events=forever: an age is a number"),
        ("raw=1d,raw=2d", "raw=2d: raw is there twice"),
        ("decisions=1d", "decisions=1d: must be at least 30d"),
        ("decisions=60d,events=90d", "decisions=60d: events are kept for 90d, and a run may wait"),
        ("deliveries=1d", "deliveries=1d: must be at least 2d"),
        ("costs=30d", "costs=30d: must be at least 31d"),
        ("tenant:acme=30d", "events are kept for 7d, and runs cannot be kept longer: set events"),
    ],
)
def test_what_is_wrong_refuses_the_start_and_names_the_variable(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEEP", words)
    with pytest.raises(ConfigurationError) as refused:
        read_settings(Settings)
    assert "PENSTOCK_KEEP: " in str(refused.value)
    assert says in str(refused.value)


def test_the_description_of_the_setting_names_the_ages_that_are_there_without_it() -> None:
    description = Settings.model_fields["keep"].description or ""
    [default] = [word for word in description.split("`") if word.startswith("raw=")]
    assert parse_keep(default.split(",")) == parse_keep(())
    assert default.count("=") == len(KINDS)
    assert [text_of(seconds) for seconds in (30, 90, 7200, 86400)] == ["30s", "90s", "2h", "1d"]
