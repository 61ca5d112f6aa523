"""Connect to NATS as the operator."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from penstock.bus import Bus, BusError, StartUpError
from penstock.bus.admin.permissions import OPERATOR
from penstock.service import bus_settings, open_content_keys
from penstock.settings import ConfigurationError, Settings, read_settings
from penstock_cli.local import embedded_nats
from penstock_cli.terminal.output import Output

# The exit codes of operators' commands.
DONE, FAILED, USAGE = 0, 1, 2


def run(
    work: Callable[[Bus], Awaitable[int]],
    output: Output,
    nats: str | None,
    data: Path,
    *,
    streams_may_be_missing: bool = False,
    refused: Callable[[str], int] | None = None,
    opened: Callable[[Settings], Awaitable[Settings]] = open_content_keys,
) -> int:
    """Connect as the operator, do the work, and return the exit code.

    If NATS cannot be used, a notice says why. With `refused`, there is no notice; `refused` then
    gets the reason and returns the exit code.

    `nats` is the URL of the server. If `nats` is None, the URL is taken from PENSTOCK_NATS_URL, or
    from a running `penstock up` that uses the folder `data`. `opened` opens the content keys.
    """
    try:
        with _only_errors_logged():
            return asyncio.run(_connected(work, nats, data, streams_may_be_missing, opened))
    except (ConfigurationError, StartUpError) as error:
        if refused is not None:
            return refused(str(error))
        output.notice(f"penstock: {error}")
        return USAGE
    except BusError as error:
        if refused is not None:
            return refused(str(error))
        output.notice(f"penstock: {error}. A part may be done already; run the command again")
        return FAILED


@contextlib.contextmanager
def _only_errors_logged() -> Iterator[None]:
    """Hide the warnings of the bus's loggers, because the command itself reports failures."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _connected(
    work: Callable[[Bus], Awaitable[int]],
    nats: str | None,
    data: Path,
    streams_may_be_missing: bool,
    opened: Callable[[Settings], Awaitable[Settings]],
) -> int:
    settings = await opened(read_settings(Settings))
    if nats is not None:
        settings = settings.model_copy(update={"nats_url": nats})
    elif "PENSTOCK_NATS_URL" not in os.environ and (url := embedded_nats.running(data)):
        settings = embedded_nats.as_embedded(settings, url, data)
    wanted = bus_settings(settings, f"penstock-cli-{os.getpid()}", OPERATOR)
    bus = await Bus.connect(wanted, ensure=False)
    try:
        if not streams_may_be_missing and not await bus.has("DEADLETTERS"):
            raise StartUpError(
                f"the NATS server at {bus.where} has no stream DEADLETTERS: no Penstock has run "
                "there. Name the right one with --nats or PENSTOCK_NATS_URL"
            )
        return await work(bus)
    finally:
        await bus.close()
