"""The stream AUDIT has each thing that happens to an approval once, in one chain for each run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from penstock.bus import (
    Bus,
    BusError,
    BusSettings,
    FenceConflict,
    Message,
    OutcomeUnknown,
    RawWriter,
    messages,
    subjects,
)
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, DecideRequest
from penstock.bus.records.erasures import HoldChange
from penstock.bus.streams import AUDIT
from penstock.bus.subjects import audit as subject_of
from penstock.bus.write import fence
from penstock.settings import Config
from penstock_approvals.audit import anchors
from penstock_approvals.audit.anchors import Anchors
from penstock_approvals.audit.chain import Entry, Link, digest, parse
from penstock_approvals.audit.trail import ApprovalAudit, Audit
from penstock_approvals.audit.verify import Verifier
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.erasing import ask, erased
from support.drive.pipeline import Pipeline, new_run_id, pipeline
from support.drive.waiting import eventually
from support.fakes.pauses import asks, confirmation, end, pause, start_and_pause, user_input
from support.fakes.raw import agno, agno_approved
from support.real.nats import NatsServer
from support.recorded.older_store import copied, put_back

ONE = (NormalizerService, ApprovalsService)
ANCHOR = subject_of("anchor")
AT = "2026-01-01T10:00:00.000Z"


def entry(which: str, **more: Any) -> Entry:
    return Entry(**{"approval_id": "a1", "event": "viewed", "at": AT, "which": which, **more})


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusSettings(url=url, name="test"))
    try:
        yield bus
    finally:
        await bus.close()


async def verified(bus: Bus, **expected: Any) -> list[str]:
    verifier = Verifier(**expected)
    async for stored in direct.replay(bus, AUDIT, ">"):
        verifier.take(stored.subject.partition(".")[2], stored.payload, stored.sequence)
    return [str(each) for each in verifier.findings()]


async def events(penstock: Pipeline, run_id: str, count: int) -> list[Link]:
    """Wait until the run's chain has this many records; return the chain."""

    async def complete() -> list[Link] | None:
        chain = await Audit(penstock.bus).chain(run_id)
        return chain if len(chain) >= count else None

    found = await eventually(complete, what=f"{count} records")
    assert found is not None
    return found


async def test_an_approval_leaves_who_asked_who_decided_and_what_was_sent(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, confirmation("t1"), user_input("t2"))
        value = {"to": "x@example.org", "copies": 1}
        items = [
            Decided(item_id="t1", decision="reject"),
            Decided(item_id="t2", decision="approve", value=value, note="to all"),
        ]
        who = Decider(
            name="ada",
            roles=["boss"],
            scopes=["decide"],
            channel="link",
            on_behalf_of="u1",
            token_id="k1",
        )
        note = "looks secret-note"
        request = DecideRequest(decider=who, note=note, items=items, digest=approval.digest)
        assert (await penstock.ask(approval.approval_id, request)).status == 200
        chain = await events(penstock, approval.run_id, 3)
        findings = await verified(penstock.bus)
    asked, decided, sent = [dict(each.record) for each in chain]
    assert findings == []
    assert [each.n for each in chain] == [1, 2, 3]
    assert (asked["event"], asked["by"], asked["at"]) == ("requested", "u1", approval.requested_at)
    assert asked["items"] == {"t1": "confirmation", "t2": "input"}
    assert asked["digest"] == decided["digest"] == approval.digest
    assert (decided["event"], decided["by"], decided["decision"]) == ("decided", "ada", "mixed")
    assert decided["items"] == {"t1": "reject", "t2": "approve"}
    said = {name: decided[name] for name in ("roles", "channel", "on_behalf_of", "token_id")}
    assert said == {"roles": ["boss"], "channel": "link", "on_behalf_of": "u1", "token_id": "k1"}
    assert decided["note_hash"].startswith("sha256:")
    assert sent["event"] == "sent"
    assert sent["digest"].startswith("sha256:")
    stored = b"".join(each.payload for each in chain)
    # neither arguments, nor values, nor notes
    for secret in (b"/x", b"example.org", b"secret-note", b"to all"):
        assert secret not in stored


async def test_a_withdrawn_request_leaves_a_record(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await end(penstock, approval.run_id)
        chain = await events(penstock, approval.run_id, 2)
    assert [each.record["event"] for each in chain] == ["requested", "withdrawn"]
    assert chain[1].record["decision"] == "the run has ended"


async def test_approvals_that_comes_back_after_an_erasure_withdraws_and_shows_nothing(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        known = await pause(penstock, confirmation("t1", path="/secret"), session_id="s1")
    async with pipeline(nats.url, Config(), (NormalizerService,)) as penstock:
        new = await start_and_pause(penstock, confirmation("t2", path="/secret"), session_id="s2")
        for run_id in (known.run_id, new):
            await end(penstock, run_id)
            await penstock.events_until(run_id, "lifecycle.cancelled")
            await ask(penstock.bus, run_id)
            await penstock.events_until(run_id, "system.erased")
    async with pipeline(nats.url, Config(), ONE) as penstock:
        for run_id in (known.run_id, new):
            await erased(penstock.bus, run_id)
        records = [await penstock.approval(known.approval_id)]
        found = await penstock.http.get("/v1/approvals", params={"run_id": new})
    assert [each.status for each in records] == ["withdrawn"]
    assert "/secret" not in records[0].model_dump_json()
    assert found.json()["approvals"] == []


async def test_who_has_erased_a_run_is_in_its_audit_and_its_approval_keeps_who_decided(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, confirmation("t1", path="/secret"))
        await end(penstock, approval.run_id)
        await events(penstock, approval.run_id, 2)
        command = await ask(penstock.bus, approval.run_id)
        chain = await events(penstock, approval.run_id, 3)
        await erased(penstock.bus, approval.run_id)
        findings = await verified(penstock.bus, only=approval.run_id)
        kept = await penstock.approval(approval.approval_id)
        shown = await penstock.http.get(f"/v1/approvals/{approval.approval_id}")
        lines = await penstock.http.get(f"/v1/approvals/{approval.approval_id}/lines")
    record = chain[2].record
    assert (record["event"], record["by"], record["decision"]) == ("erased", "officer", "asked")
    assert record["key"] == f".erased.{command.erasure_id}"
    assert findings == []
    assert (kept.status, kept.digest) == ("withdrawn", approval.digest)
    assert "/secret" not in kept.model_dump_json() + shown.text
    assert lines.json() == {"lines": []}


async def test_who_has_set_and_lifted_a_legal_hold_is_in_the_audit_once(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        run_id: str = new_run_id()
        hold: dict[str, Any] = {"hold_at": AT, "reason": "case 7"}
        for change, by in (("hold_set", "lea"), ("hold_set", "lea"), ("hold_lifted", "max")):
            fields = {**hold, "change": change, "by": by, "at": messages.now()}
            request = HoldChange.model_validate(fields)
            answer = await penstock.bus.request(subjects.hold(run_id), request.dump())
            assert answer.data == b"{}"
        chain = await events(penstock, run_id, 2)
        findings = await verified(penstock.bus, only=run_id)
    told = [(each.record["event"], each.record["by"], each.record["decision"]) for each in chain]
    assert told == [("hold_set", "lea", "case 7"), ("hold_lifted", "max", "case 7")]
    assert findings == []


async def test_arguments_values_and_notes_are_kept_if_a_setting_says_so(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE, audit_details=True) as penstock:
        approval = await pause(penstock, confirmation("t1", path="/x"))
        await penstock.decide(approval.approval_id, note="checked")
        asked, decided, _ = await events(penstock, approval.run_id, 3)
    assert asked.record["details"]["items"]["t1"]["args"] == {"path": "/x"}
    assert decided.record["details"]["note"] == "checked"


async def test_processes_that_append_at_once_make_one_chain_with_each_entry_once(
    nats: NatsServer,
) -> None:
    run_id = new_run_id()
    async with connected(nats.url) as one, connected(nats.url) as two:
        audits = [Audit(one), Audit(two), Audit(one)]
        await asyncio.gather(
            *(each.append(run_id, entry(str(n))) for n in range(15) for each in audits)
        )
        chain = await Audit(one).chain(run_id)
        findings = await verified(one, only=run_id)
    assert findings == []
    assert sorted(each.key for each in chain) == sorted(f"a1.viewed.{n}" for n in range(15))


async def test_an_append_whose_answer_is_lost_writes_its_entry_once(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run_id()
    append = fence.append
    lost = iter([True, False, True])

    async def forgetful(*given: Any) -> int:
        sequence = await append(*given)
        if next(lost, False):
            raise OutcomeUnknown("no answer")
        return sequence

    monkeypatch.setattr(fence, "append", forgetful)
    async with connected(nats.url) as bus:
        await Audit(bus).append(run_id, entry("1"), entry("2"), entry("3"))
        await Audit(bus).append(run_id, entry("3"), entry("2"), entry("4"))
        chain = await Audit(bus).chain(run_id)
    assert [each.key for each in chain] == [f"a1.viewed.{n}" for n in (1, 2, 3, 4)]


async def test_the_server_refuses_to_delete_or_replace_records(nats: NatsServer) -> None:
    run_id = new_run_id()
    async with connected(nats.url) as bus:
        await Audit(bus).append(run_id, entry("1"))
        stored = await bus.tail(AUDIT, subject_of(run_id))
        assert stored is not None
        for call, body in (
            (f"STREAM.PURGE.{AUDIT}", {}),
            (f"STREAM.MSG.DELETE.{AUDIT}", {"seq": stored.sequence}),
        ):
            with pytest.raises(BusError):
                await bus.api(call, body)
        for headers in ({"Nats-Rollup": "sub"}, {"Nats-TTL": "1s"}):
            with pytest.raises(BusError):
                await bus.publisher.publish(Message(subject_of(run_id), b"x", headers))
        with pytest.raises(FenceConflict):
            await fence.append(bus, subject_of(run_id), [Message(subject_of(run_id), b"x", {})], 0)
        assert len(await Audit(bus).chain(run_id)) == 1


async def test_a_changed_record_blocks_no_further_records(nats: NatsServer) -> None:
    run_id = new_run_id()
    async with connected(nats.url) as bus:
        await Audit(bus).append(run_id, entry("1"))
        forged = Message(subject_of(run_id), b'{"n":2,"prev":"x","hash":"y"}', {})
        await bus.publisher.publish(forged)
        await Audit(bus).append(run_id, entry("3"))
        findings = await verified(bus, only=run_id)
    assert len([each for each in findings if run_id in each]) == 1
    assert f"run {run_id}, record 2: its content does not fit its hash" in findings[0]


async def test_an_anchor_is_written_once_a_day_whatever_the_number_of_processes(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "MAX_HEADS", 3)
    runs = [new_run_id() for _ in range(8)]
    async with connected(fresh_nats.url) as one, connected(fresh_nats.url) as two:
        assert not await Anchors(one).daily()  # there is nothing to cover
        for run_id in runs:
            await Audit(one).append(run_id, entry("1"), entry("2"))
        wrote = await asyncio.gather(*(Anchors(bus).daily() for bus in (one, two, one, two)))
        again = await Anchors(two).daily()
        await Audit(one).append(runs[0], entry("3"))
        today = await Anchors(two).daily()
        monkeypatch.setattr(one.clock, "stamp", lambda: "2099-01-01T00:00:00.000Z")
        tomorrow = await Anchors(one).daily()
        stored = [parse(each.payload) async for each in direct.replay(one, AUDIT, "audit.anchor")]
        findings = await verified(one)
    assert (sum(wrote), again, today, tomorrow) == (1, False, False, True)
    assert [len(each.record["heads"]) for each in stored] == [3, 3, 2, 1]
    assert {run for each in stored for run in each.record["heads"]} == set(runs)
    assert findings == []


async def test_an_anchor_on_demand_covers_what_is_new_and_does_not_replace_the_daily_one(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        assert await Anchors(bus).now() is None
        await Audit(bus).append("r1", entry("1"))
        first = await Anchors(bus).now()
        assert first is not None
        assert await Anchors(bus).now() == first  # nothing is new
        await Audit(bus).append("r1", entry("2"))
        assert await Anchors(bus).daily()
        last = await Anchors(bus).now()
        assert last is not None
        assert (last.n, last.record["heads"]["r1"][0]) == (2, 2)
        assert await verified(bus, anchor=first.hash) == []
        assert await verified(bus, anchor="0" * 64)


async def test_a_signed_anchor_is_verified_by_its_key(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url) as bus:
        await Audit(bus).append("r1", entry("1"))
        await Anchors(bus, (b"new", b"old")).now()
        assert await verified(bus, keys=[b"old", b"new"]) == []
        assert await verified(bus, keys=[b"old"])


async def test_a_forged_last_anchor_is_followed_by_one_that_covers_everything(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        await Audit(bus).append("r1", entry("1"))
        await Anchors(bus).now()
        await bus.publisher.publish(Message("audit.anchor", b"forged", {}))
        made = await Anchors(bus).now()
        findings = await verified(bus)
    assert made is not None
    assert (made.n, made.record["heads"].keys()) == (3, {"r1"})
    assert len(findings) == 1
    assert "the anchors, record 2: it is no record" in findings[0]


async def test_the_audit_is_read_over_http_and_shows_who_has_seen_the_approval(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE, audit_key="k") as penstock:
        approval = await pause(penstock)
        path = f"/v1/approvals/{approval.approval_id}"
        for _ in range(3):
            assert (await penstock.http.get(path)).status_code == 200
        await penstock.decide(approval.approval_id)
        await events(penstock, approval.run_id, 4)
        answer = (await penstock.http.get(f"{path}/audit")).json()
        unknown = await penstock.http.get(f"/v1/approvals/{new_run_id()}/audit")
    _, viewed, _, sent = answer["records"]
    assert [each["event"] for each in answer["records"]] == [
        *["requested", "viewed", "decided", "sent"]
    ]
    assert (viewed["by"], viewed["channel"], viewed["digest"]) == (
        *("anonymous", "api"),
        approval.digest,
    )
    assert len(viewed["ip_hash"]) == 64  # with a key only
    assert (answer["intact"], answer["findings"], answer["head"]) == (True, [], sent["hash"])
    assert unknown.status_code == 404


async def test_the_requester_sees_an_own_approval_without_a_record(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        audit = ApprovalAudit(penstock.bus)
        await audit.viewed(approval, Decider(name="u1"), "127.0.0.1")
        assert len(await events(penstock, approval.run_id, 1)) == 1
        for who in (
            Decider(name="u1", token_id="link-1", channel="link"),
            Decider(name="bob", on_behalf_of="u1"),
            Decider(name="bob"),
            Decider(name="bob"),
        ):
            await audit.viewed(approval, who, "127.0.0.1")
        chain = await events(penstock, approval.run_id, 4)
    assert [each.record["by"] for each in chain[1:]] == ["u1", "bob", "bob"]
    assert not any("ip_hash" in each.record for each in chain)


async def test_the_api_says_that_the_chain_is_broken(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        subject = subject_of(approval.run_id)
        await penstock.bus.publisher.publish(Message(subject, b"forged", {}))
        path = f"/v1/approvals/{approval.approval_id}/audit"
        answer = (await penstock.http.get(path)).json()
    assert answer["intact"] is False
    assert "record 2: it is no record of an audit" in answer["findings"][0]


async def next_leg(penstock: Pipeline, approval: ApprovalRecord, body: bytes) -> None:
    """Have the upstream answer the decision with this body."""
    upstream = await RawWriter.resume(penstock.bus, approval.run_id, "upstream", "test/2")
    items = [{"item_id": "t1", "decision": "approve"}]
    opened = {"agent": "a", "approval_id": approval.approval_id, "items": items}
    await upstream.write("open", orjson.dumps(opened), leg=2)
    await upstream.write("bytes", body, leg=2)
    await upstream.write("end", b'{"outcome":"eof"}', leg=2)


async def test_what_ran_is_audited_when_the_run_ends(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await penstock.decide(approval.approval_id)
        await events(penstock, approval.run_id, 3)
        await next_leg(penstock, approval, agno_approved())
        *_, ran = await events(penstock, approval.run_id, 4)
    assert (ran.record["event"], ran.record["decision"]) == ("ran", "as_approved")
    assert ran.record["digest"] == approval.items[0]["digest"]
    assert ran.record["items"] == {"t1": "ok"}


async def test_a_call_that_is_not_what_was_approved_is_audited_as_such(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await penstock.decide(approval.approval_id)
        await events(penstock, approval.run_id, 3)
        await next_leg(penstock, approval, agno_approved().replace(b'"/x"', b'"/y"'))
        *_, ran = await events(penstock, approval.run_id, 4)
    assert (ran.record["event"], ran.record["decision"]) == ("ran", "not_what_was_approved")
    assert ran.record["digest"] == digest({"path": "/y"})


async def test_what_ran_is_audited_when_the_run_pauses_again(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await penstock.decide(approval.approval_id)
        await events(penstock, approval.run_id, 3)
        body = agno_approved().split(b"event: RunContent\n")[0] + asks(confirmation("t2"))
        await next_leg(penstock, approval, body)
        chain = await events(penstock, approval.run_id, 5)
    assert [each.record["event"] for each in chain] == [
        *["requested", "decided", "sent", "ran", "requested"]
    ]


async def test_a_rejected_call_did_not_run(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await penstock.decide(approval.approval_id, "reject")
        await events(penstock, approval.run_id, 3)
        await next_leg(penstock, approval, agno("RunContinued") + agno("RunCompleted"))
        await penstock.ended(approval.run_id)
        chain = await events(penstock, approval.run_id, 3)
    assert [each.record["event"] for each in chain] == ["requested", "decided", "sent"]


async def test_an_older_store_of_the_audit_is_completed_and_the_loss_is_named(
    fresh_nats: NatsServer,
) -> None:
    async with pipeline(fresh_nats.url, Config(), ONE, outbox_s=0.2) as penstock:
        kept = await pause(penstock)
        await events(penstock, kept.run_id, 1)
        copy = copied(fresh_nats, AUDIT)
        lost = await pause(penstock)
        await penstock.decide(kept.approval_id)
        await penstock.decide(lost.approval_id)
        before = [await events(penstock, each.run_id, 3) for each in (kept, lost)]
        marked = (await penstock.bus.api(f"STREAM.INFO.{AUDIT}"))["state"]["last_seq"]

        async def noted() -> bool:
            entry = await penstock.bus.bucket("checkpoints").get("marks")
            return entry is not None and orjson.loads(entry.value)[AUDIT] == marked

        await eventually(noted, what="the end of AUDIT is noted")
        await asyncio.to_thread(put_back, fresh_nats, copy, AUDIT)

        async def named() -> bool:
            found = [parse(each.payload) for each in await Audit(penstock.bus).stored(ANCHOR)]
            return any(each.record["event"] == "lost" for each in found)

        await eventually(named, 30, "the loss is named")
        after = [await events(penstock, each.run_id, 2) for each in (kept, lost)]
        findings = await verified(penstock.bus)
    # The records that follow from approvals have the same bytes as before. The record `sent` is
    # lost.
    assert [[each.payload for each in chain] for chain in after] == [
        [each.payload for each in chain[:2]] for chain in before
    ]
    assert findings == []
