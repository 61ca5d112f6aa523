"""`penstock replay-server`: stored runs as a fake agent server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.bus import Bus
from penstock.service import stop_on_signals
from penstock_cli.commands.options import operator
from penstock_cli.operations.connection import DONE, USAGE
from penstock_cli.operations.replays import NoReplay, Replays, recorded, server
from penstock_cli.terminal.output import Output


@operator()
async def replay_server(
    bus: Bus,
    output: Output,
    run_ids: Annotated[list[str], typer.Argument(help="The runs, see `penstock runs`.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port (0: a free one).")] = 7778,
    speed: Annotated[
        float, typer.Option(min=0, help="How many times faster than it was; 0: without pauses.")
    ] = 1.0,
) -> int:
    """Serve stored runs as the agent server that they came from, until Ctrl-C.

    No model and no tool runs: a start gets the stored bytes of the next run, and each decision
    those of its next leg.
    """
    try:
        recordings = [await recorded(bus, run_id) for run_id in run_ids]
    except NoReplay as error:
        output.notice(f"penstock: {error}")
        return USAGE
    until = stop_on_signals()
    serving = server(Replays(recordings, speed), port)
    await serving.start()
    try:
        for each in recordings:
            shown = {"run": each.run_id, "protocol": each.protocol, "agent": each.agent}
            url = f"http://127.0.0.1:{serving.port}"
            text = (
                f"{each.agent} ({each.protocol}, {len(each.legs)} legs) is at {url}: {each.run_id}"
            )
            output.result({**shown, "url": url}, text)
        sys.stdout.flush()
        await until.asked.wait()
    finally:
        await serving.stop()
    return DONE
