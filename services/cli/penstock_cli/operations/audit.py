"""Verify and export the audit of approvals over NATS, and take anchors."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

from penstock.bus import Bus, Stored
from penstock.bus.read import direct
from penstock.bus.streams import AUDIT
from penstock.bus.subjects import audit
from penstock_approvals.audit.anchors import Anchors
from penstock_approvals.audit.trail import Audit
from penstock_approvals.audit.verify import ANCHOR, Verifier
from penstock_approvals.settings import keys_of
from penstock_cli.operations.connection import DONE, FAILED, USAGE
from penstock_cli.terminal import render
from penstock_cli.terminal.output import Output


async def verify(
    bus: Bus, output: Output, key: str | None, run_id: str | None, anchor: str | None
) -> int:
    """Verify the anchors and the chains of all runs, or of one run; return the exit code.

    `key` is the setting `audit_key`: with None, signatures are not verified. `anchor` is the hash
    of an anchor that the chain of anchors must have; None for any.
    """
    if not _is_run(run_id, output):
        return USAGE
    verifier = Verifier(keys_of(key), anchor, run_id)
    async for stored in _records(bus, run_id):
        verifier.take(_chain(stored), stored.payload, stored.sequence)
    return _report(output, verifier)


async def export(bus: Bus, output: Output, run_id: str | None) -> int:
    """Write each record of all runs, or of one run, with the anchors, as a line of JSON; return the
    exit code. `record` has the stored bytes, from which the hashes are computed."""
    if not _is_run(run_id, output):
        return USAGE
    async for stored in _records(bus, run_id):
        text = stored.payload.decode(errors="surrogateescape")
        line = {"chain": _chain(stored), "sequence": stored.sequence, "record": text}
        output.text(json.dumps(line))  # in ASCII, so that bytes that are no text are kept, too
    return DONE


def verify_export(
    file: Path, output: Output, key: str | None, run_id: str | None, anchor: str | None
) -> int:
    """Verify what `export` has written, without a server; as `verify`."""
    verifier = Verifier(keys_of(key), anchor, run_id)
    number = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                found = json.loads(line)
                chain, sequence, text = found["chain"], found["sequence"], found["record"]
                if run_id is None or chain in (ANCHOR, run_id):
                    payload = text.encode(errors="surrogateescape")
                    verifier.take(str(chain), payload, int(sequence))
    except OSError as error:
        output.notice(f"penstock: {file} cannot be read: {error.strerror}")
        return USAGE
    except (ValueError, LookupError, TypeError, AttributeError):
        output.notice(f"penstock: line {number} of {file} is no line of `audit --export`")
        return FAILED
    return _report(output, verifier)


def _is_run(run_id: str | None, output: Output) -> bool:
    if run_id is None or re.fullmatch(r"[\w-]+", run_id, re.ASCII):
        return True
    output.notice(f"penstock: {run_id!r} is no run's id")
    return False


async def _records(bus: Bus, run_id: str | None) -> AsyncIterator[Stored]:
    """Yield the records of all runs, or of one run, and the anchors, in the stream's order."""
    if run_id is None:
        async for stored in direct.replay(bus, AUDIT, ">"):
            yield stored
        return
    # The anchors are read before the run's records. If the anchors were read later, a new anchor
    # could name a record that was written after the run's records were read. This record would then
    # seem to be missing.
    trail = Audit(bus)
    found = await trail.stored(audit(ANCHOR)) + await trail.stored(audit(run_id))
    for stored in sorted(found, key=lambda each: each.sequence):
        yield stored


def _chain(stored: Stored) -> str:
    return stored.subject.partition(".")[2]


def _report(output: Output, verifier: Verifier) -> int:
    findings = verifier.findings()
    if output.as_json:
        output.json_line(
            {
                "runs": verifier.runs,
                "records": verifier.records,
                "anchors": verifier.anchors,
                "records_after_the_last_anchor": verifier.newer,
                "anchor": verifier.head,
                "losses": verifier.losses,
                "findings": [
                    {"chain": each.chain, "n": each.n, "what": each.what} for each in findings
                ],
            }
        )
        return FAILED if findings else DONE
    for finding in findings:
        output.text(render.clean(str(finding)))
    for loss in verifier.losses:
        output.text(render.clean(loss))
    state = f"{len(findings)} findings" if findings else "intact"
    output.notice(
        f"{verifier.records} records of {verifier.runs} runs, {verifier.anchors} anchors: {state}"
    )
    if verifier.newer:
        output.notice(
            f"{verifier.newer} records are newer than the last anchor: if somebody removes the "
            "last of these before the next anchor (--take-anchor), this check cannot find it"
        )
    if verifier.head is not None:
        output.notice(f"the last anchor is {verifier.head}; keep it elsewhere (see --anchor)")
    return FAILED if findings else DONE


async def take_anchor(bus: Bus, output: Output, key: str | None) -> int:
    anchors = Anchors(bus, keys_of(key))
    last = await anchors.last()
    if last is not None and last.mac is not None and not keys_of(key):
        output.notice(
            "penstock: the anchors are signed, and one without a signature would look forged: "
            "set PENSTOCK_AUDIT_KEY as the approvals service has it"
        )
        return USAGE
    anchor = await anchors.now()
    if anchor is None:
        output.notice("penstock: the audit has no records yet, so there is nothing to anchor")
        return FAILED
    facts = {"anchor": anchor.hash, "at": anchor.record.get("at"), "n": anchor.n}
    output.result(facts, anchor.hash)
    return DONE
