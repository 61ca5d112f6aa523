"""`penstock doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.commands.options import DATA, AsJson, Data, Nats, configuration
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.render import clean

if TYPE_CHECKING:
    from penstock.bus import Bus
    from penstock.doctor.checks import Finding
    from penstock.doctor.facts import Facts


def doctor(
    config: Annotated[
        Path | None, typer.Option(help="Also check the servers of this file's agents.")
    ] = None,
    probe: Annotated[
        list[str] | None,
        typer.Option(help="The URL of a service's probe port, e.g. http://edge:9000; repeatable."),
    ] = None,
    values: Annotated[
        list[Path] | None,
        typer.Option(help="Also check these values; repeatable, in the order of Helm's `-f`."),
    ] = None,
    chart: Annotated[
        Path, typer.Option(help="The folder of the chart that the values are for.")
    ] = Path("deploy/helm/penstock"),
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Check a deployment, and say what is wrong and what to do.

    The check changes nothing and starts no run. The exit code is 1 if something is wrong.
    """
    from penstock.bus import StartUpError  # noqa: PLC0415 - takes long to import, as all here
    from penstock.doctor import checks, nats_facts  # noqa: PLC0415
    from penstock.doctor.facts import Facts  # noqa: PLC0415
    from penstock.service import open_content_keys  # noqa: PLC0415
    from penstock.settings import Settings, read_settings  # noqa: PLC0415
    from penstock.settings.keep import parse_keep  # noqa: PLC0415
    from penstock_cli.operations import connection  # noqa: PLC0415
    from penstock_cli.operations.doctor import gather  # noqa: PLC0415

    output = Output(as_json)
    places = gather.Places(config, probe or (), values or (), chart)
    found: list[Facts] = []
    unopened: list[str] = []

    async def opened(settings: Settings) -> Settings:
        try:
            return await open_content_keys(settings)
        except StartUpError as error:  # a finding: the other checks need no content
            unopened.append(str(error))
            return settings.model_copy(update={"content_keys": ()})

    async def look(bus: Bus) -> int:
        facts = await nats_facts.in_nats(bus, parse_keep(settings.keep))
        found.append(replace(facts, content=unopened[0]) if unopened else facts)
        return connection.DONE

    def refused(reason: str) -> int:
        found.append(Facts(refusal=reason))
        return connection.FAILED

    with configuration(output):
        settings = read_settings(Settings)
        connection.run(
            *(look, output, nats, data),
            streams_may_be_missing=True,
            refused=refused,
            opened=opened,
        )
        if nats is not None:
            settings = settings.model_copy(update={"nats_url": nats})
        facts = asyncio.run(gather.outside_nats(found[-1], settings, places))
    raise typer.Exit(_show(output, checks.run_checks(facts)))


def _show(output: Output, findings: Sequence[Finding]) -> int:
    for each in findings:
        if output.as_json:
            output.json_line(asdict(each))
        elif each.verdict == "ok":
            output.text(f"{each.check}: ok: {each.text}")
        else:
            verdict = each.verdict.replace("_", " ")
            output.text(clean(f"{each.check}: {verdict}: {each.text}. To do: {each.to_do}"))
    return int(any(each.verdict == "wrong" for each in findings))
