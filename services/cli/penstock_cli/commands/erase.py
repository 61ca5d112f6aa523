"""`penstock erase`: erases the content of runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock_cli.commands.options import client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output
from penstock_client import ApiError, PenstockError, path_of

REFUSED = 1  # the exit code if the content of a run was not erased


@client
def erase(
    api: Api,
    output: Output,
    runs: Annotated[
        list[str] | None, typer.Argument(help="The ids of the runs, see `penstock runs`.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="All runs of this user. Default: yours.")] = None,
    session: Annotated[str | None, typer.Option(help="All runs of this session.")] = None,
    tenant: Annotated[str | None, typer.Option(help="All runs of this tenant.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="All runs that have begun before this time (RFC 3339).")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit.")] = None,
) -> int:
    """Erase the content of runs that have ended: nobody gets it any more, and it is deleted.

    With several options, a run must fit all. Keep the lines of `--json` outside of Penstock: after
    a restore of an older backup, these runs must be erased again.
    """
    named = {"user_id": user, "session_id": session, "tenant": tenant, "older_than": older_than}
    chosen = {name: value for name, value in named.items() if value is not None}
    if bool(runs) == bool(chosen):
        raise PenstockError("name runs, or choose by --user, --session, --tenant, --older-than")
    count = refused = 0
    for found in _reports(api, runs or (), chosen, reason):
        count += 1
        refused += found["state"] == "refused"
        text = f"{found['run_id']}: {found['state']}"
        output.result(found, f"{text}: {found['reason']}" if "reason" in found else text)
    if not count:
        output.notice("No run fits. Without --user and --tenant, only your own runs are chosen.")
    return REFUSED if refused else 0


def _reports(api: Api, runs: Any, chosen: dict[str, str], reason: str | None) -> Any:
    for run_id in runs:
        query = {} if reason is None else {"reason": reason}
        try:
            yield api.call("DELETE", path_of("runs", run_id, "content"), query)
        except ApiError as error:
            yield {"run_id": run_id, "state": "refused", "reason": str(error)}
    asked: dict[str, Any] = {**chosen, **({"reason": reason} if reason else {})}
    while chosen:
        answer = api.call("POST", "/v1/erasures", body=asked)
        for run_id in answer["erased"]:
            yield {"run_id": run_id, "state": "erasing", "erasure_id": answer["erasure_id"]}
        for run_id in answer["requested"]:
            yield {"run_id": run_id, "state": "requested", "erasure_id": answer["erasure_id"]}
        for each in answer["refused"]:
            yield {"state": "refused", **each}
        if answer["next"] is None:
            return
        asked |= {"erasure_id": answer["erasure_id"], "before": answer["next"]}
