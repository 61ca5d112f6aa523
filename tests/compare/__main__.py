"""`make compare [ARGS="SERVER…"]`: kill servers by the same seed, and renew docs/compared.md."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
from typing import Any, Final

from compare.page import FILE
from compare.rivals import RIVALS, Rival
from compare.trials import Extent, check, kill, lacking, versions
from penstock_conformance.chaos.server import ServerFailed
from readmes import generated
from support.drive.repository import ROOT

_PAGE: Final = ROOT / "docs" / "compared.md"
_OUT: Final = ROOT / ".penstock" / "compared"  # the frames of every run


def main() -> None:
    names = [rival.id for rival in RIVALS]
    parser = argparse.ArgumentParser(prog="make compare ARGS=…", description=__doc__)
    parser.add_argument("servers", nargs="*", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    # With it, each start compiles the server anew, which is no part of a restart elsewhere.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for rival in RIVALS:
        if rival.id in (asked.servers or names):
            extent = Extent(asked.seed, asked.rounds, rival.patience_s)
            _publish(rival, asyncio.run(_try(rival, extent)))


def _publish(rival: Rival, report: dict[str, Any]) -> None:
    known = {**json.loads(FILE.read_text("utf-8")), rival.id: report}
    in_order = {each.id: known[each.id] for each in RIVALS if each.id in known}
    FILE.write_text(json.dumps(in_order, indent=1, ensure_ascii=False) + "\n", "utf-8")
    _PAGE.write_text(generated.renewed(_PAGE.read_text("utf-8")), "utf-8")


async def _try(rival: Rival, extent: Extent) -> dict[str, Any]:
    """Return the report on a server, or why it is not shown."""
    print(f"== {rival.name}", flush=True)
    if (reason := lacking(rival)) is not None:
        return {"not shown": reason}
    try:
        checked = await check(rival, _OUT / f"{rival.id}-conformance")
        report = await kill(rival, extent, _OUT / rival.id)
    except (RuntimeError, ServerFailed) as error:
        return {"not shown": str(error).partition("\n")[0]}
    # Commands and names of runs are of this machine and this call.
    ours = ("command", "again", "faults", "moments")
    figures = {k: v for k, v in report.items() if k not in ours and not k.endswith("_names")}
    load = round(os.getloadavg()[2], 1)
    about = {"date": datetime.date.today().isoformat(), "versions": versions(rival), "load": load}
    return {**about, **figures, **({"conformance": _short(checked)} if checked else {})}


def _short(report: dict[str, Any]) -> dict[str, Any]:
    faults = [each for each in report["statements"] if each["verdict"] == "failed"]
    counts = {name: report[name] for name in ("passed", "failed", "not_shown")}
    kept = [{name: each[name] for name in ("id", "level", "told")} for each in faults]
    return {**counts, "faults": kept}


if __name__ == "__main__":
    main()
