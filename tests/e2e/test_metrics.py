"""A deployment serves the metrics that its alerts and dashboards ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from alerts.queries import OF_TARGET, queries, selected
from support.drive.waiting import eventually
from support.real.deployment import Deployment, Instance

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

Series = tuple[str, frozenset[tuple[str, str]]]


class Scraped:
    """All series of all instances. The values of one series are added up over the instances."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.values: dict[Series, float] = {}
        self.names: set[str] = set()  # also of metrics that have no series yet
        for text in texts:
            for family in text_string_to_metric_families(text):
                ends = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
                self.names |= {family.name + end for end in ends.get(family.type, ("",))}
                for sample in family.samples:
                    key = sample.name, frozenset(sample.labels.items())
                    self.values[key] = self.values.get(key, 0.0) + sample.value

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the series that have these labels."""
        wanted = labels.items()
        return sum(
            value for (each, has), value in self.values.items() if each == name and wanted <= has
        )

    def labels(self, name: str) -> set[str]:
        return {label for each, has in self.values if each == name for label, _ in has}


async def scrape(penstock: Deployment, of: Sequence[Instance] | None = None) -> Scraped:
    answers = await asyncio.gather(
        *(penstock.http.get(f"{each.probes}/metrics") for each in of or penstock.instances)
    )
    return Scraped(answer.text for answer in answers)


async def test_a_run_and_its_requests_are_counted_once(penstock: Deployment) -> None:
    before = await scrape(penstock)
    run_id = await penstock.run("assistant", "hello")
    await penstock.all(run_id)
    await penstock.http.get(f"{penstock.edge()}/v1/runs/{run_id}-unknown")

    after = await scrape(penstock)
    for name, labels in (
        ("penstock_runs_total", {"agent": "assistant", "outcome": "completed"}),
        ("penstock_run_seconds_count", {"agent": "assistant"}),
        ("penstock_run_start_seconds_count", {"agent": "assistant"}),
        ("penstock_first_bytes_seconds_count", {"agent": "assistant"}),
        ("penstock_http_requests_total", {"method": "POST", "route": "/v1/runs", "code": "202"}),
    ):
        assert after.value(name, **labels) == before.value(name, **labels) + 1, name
    assert not any(run_id in value for _, has in after.values for _, value in has)


async def test_a_stream_that_continues_at_a_cursor_is_counted(penstock: Deployment) -> None:
    run_id = await penstock.run("assistant", "hello")
    first, *rest = await penstock.all(run_id)
    before = await scrape(penstock)
    assert [event.id for event in await penstock.all(run_id, after=first.id)] == [
        event.id for event in rest
    ]
    after = await scrape(penstock)
    name = "penstock_resumes_total"
    assert after.value(name, result="hit") == before.value(name, result="hit") + 1


async def test_the_added_latency_of_live_events_is_measured(penstock: Deployment) -> None:
    name, before = "penstock_added_seconds", await scrape(penstock)
    run_id = await penstock.run("adk", "slow 40 50")
    live = await penstock.all(run_id)
    after = await scrape(penstock)
    measured = after.value(f"{name}_count") - before.value(f"{name}_count")
    assert 1 <= measured < len(live)
    assert after.value(f"{name}_sum") - before.value(f"{name}_sum") < 10 * measured
    # The past of a run says nothing about the latency.
    assert len(await penstock.all(run_id)) == len(live)
    assert (await scrape(penstock)).value(f"{name}_count") == after.value(f"{name}_count")


async def test_each_metric_that_a_query_asks_for_is_served(penstock: Deployment) -> None:
    scraped = await scrape(penstock)
    for name, query in queries().items():
        for metric, labels in selected(query).items():
            assert metric in scraped.names, f"{name}: nothing serves {metric}"
            if has := scraped.labels(metric):
                assert labels <= has | OF_TARGET, f"{name}: {metric} has no {labels - has}"


@pytest.mark.timeout(150)
async def test_streams_readers_and_lag_are_measured(penstock: Deployment) -> None:
    # Without a run, RAW has no bytes if this test is the first on its worker.
    await penstock.all(await penstock.run("assistant", "hello"))

    async def measured() -> bool:
        scraped = await scrape(penstock)
        of_normalizers = await scrape(penstock, penstock.of("normalizer"))
        return (
            scraped.value("penstock_stream_bytes", stream="RAW") > 0
            and ("reader", "approvals")
            in {each for _, has in of_normalizers.values for each in has}
            and ("penstock_deadletters_kept", frozenset()) in of_normalizers.values
            and ("penstock_normalizer_lag_frames", frozenset({("shard", "0")})) in scraped.values
        )

    await eventually(measured, 100, "the streams, the readers and the lag are measured")
    assert (await scrape(penstock)).value("penstock_build_info") == len(penstock.instances)
    # A service that does not measure dead letters must not say that there are none.
    of_edges = await scrape(penstock, penstock.of("edge"))
    assert ("penstock_deadletters_kept", frozenset()) not in of_edges.values
