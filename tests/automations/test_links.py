"""A webhook carries one-time links to the approval, made with the rights of the rule's owner."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock_approvals.service import ApprovalsService
from penstock_automations.rules.check import InvalidRule, missing_right
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner
from penstock_normalizer.service import NormalizerService
from support.drive.automations import automations, rule
from support.fakes.pauses import confirmation, start_and_pause
from support.fakes.policies import written
from support.fakes.receiver import Received, answers
from support.real.nats import NatsServer

ASKED = "approval.requested"
ADMIN = Owner(user_id="ops", scopes=["read", "automate", "administer"])


def with_links(url: str, *links: dict[str, Any], subject: str = ASKED) -> Rule:
    return rule("pager", url, subject, webhook={"links": list(links)})


async def test_a_person_decides_by_the_link_that_a_webhook_brings(nats_server: NatsServer) -> None:
    others = (NormalizerService, ApprovalsService)
    async with automations(nats_server.url, others=others) as made:

        async def echoes(writer: asyncio.StreamWriter, received: Received) -> None:
            await answers(200, received.body.decode())(writer, received)

        made.receiver.usual["/hook"] = echoes
        links = ({"user": "u1"}, {"role": "finance"})
        await made.store.apply(with_links(made.receiver.url(), *links), ADMIN, all_users=True)
        await made.settled()
        run_id = await start_and_pause(made.penstock, confirmation("t1"))
        [request] = await made.receiver.count(1)
        mine, groups = request.json["links"]
        assert mine["user"] == "u1"
        assert re.fullmatch(r"/d/pln_[A-Za-z0-9_-]{43}", mine["url"])
        assert mine["expires_at"]
        # Without a policy, only the requester decides, so there is no link for the group.
        assert groups["role"] == "finance"
        assert "could not decide" in groups["error"]
        assert "url" not in groups

        http = made.penstock.http
        shown = (await http.get(mine["url"])).text
        signature = re.findall(r'name="csrf" value="([0-9a-f]+)"', shown)[0]
        form = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode({"csrf": signature, "decision": "approve"})
        acted = await http.post(mine["url"], content=body, headers=form)
        assert acted.status_code == 303, acted.text
        events = await made.penstock.events_until(run_id, "approval.decided")
        assert events[-1].data["by"] == "u1"

        # The receiver has sent the link back. Records of deliveries do not keep it.
        secret = mine["url"].removeprefix("/d/")
        await made.outcomes(run_id, 1)
        for bucket in ("deliveries", "rules", "tokens"):
            for entry in await made.bus.bucket(bucket).entries():
                assert secret.encode() not in entry.value


async def test_an_escalation_brings_links_to_those_whom_it_lets_decide(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    others = (NormalizerService, ApprovalsService)
    steps = "[{after: 1s, to: {roles: [leads]}}]"
    terms = f"deadline: 1h, remind: [3598s], escalate: {steps}"
    policy = written(tmp_path, f"default: {{{terms}}}\n")
    async with automations(nats_server.url, others=others, policy=policy) as made:
        link = {"role": "leads"}
        url = made.receiver.url()
        both = with_links(url, link, subject="approval.escalated").model_dump(exclude_none=True)
        both["subjects"] = ["approval.escalated", "approval.reminded"]
        await made.store.apply(Rule.model_validate(both), ADMIN, all_users=True)
        await made.settled()
        run_id = await start_and_pause(made.penstock, confirmation("t1"))
        both_sent = await made.receiver.count(2)
        request, reminder = sorted(both_sent, key=lambda each: str(each.json["type"]))
        assert reminder.json["type"] == "approval.reminded"
        assert reminder.json["links"][0]["role"] == "leads"
        assert request.json["type"] == "approval.escalated"
        assert request.json["data"]["data"]["to"] == {"roles": ["leads"], "users": []}
        [sent] = request.json["links"]
        http = made.penstock.http
        shown = (await http.get(sent["url"])).text
        signature = re.findall(r'name="csrf" value="([0-9a-f]+)"', shown)[0]
        form = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode({"csrf": signature, "decision": "approve"})
        acted = await http.post(sent["url"], content=body, headers=form)
        assert acted.status_code == 303, acted.text
        events = await made.penstock.events_until(run_id, "approval.decided")
    assert events[-1].data["outcome"] == "approved"
    types = [event.type for event in events]
    assert types.index("approval.escalated") < types.index("approval.decided")


def test_a_rule_on_requests_and_escalations_may_have_links() -> None:
    both = with_links("https://x.example/", {"role": "finance"}, subject=ASKED)
    subjects = [ASKED, "approval.escalated"]
    made = Rule.model_validate({**both.model_dump(exclude_none=True), "subjects": subjects})
    assert made.subjects == subjects


@pytest.mark.parametrize(
    ("scopes", "may"), [(["automate", "administer"], True), (["automate", "act-as"], False)]
)
def test_links_need_an_administrator(scopes: list[str], may: bool) -> None:
    made = with_links("https://x.example/", {"role": "finance"})
    reason = missing_right(made.action, Owner(user_id="u1", scopes=scopes))
    assert (reason is None) == may


@pytest.mark.parametrize(
    ("subject", "link"),
    [
        ("lifecycle.completed", {"role": "finance"}),
        ("approval.*", {"role": "finance"}),
        (ASKED, {}),
        (ASKED, {"role": ""}),
        (ASKED, {"role": "x", "lifetime_s": 0}),
        (ASKED, {"role": "x", "url": "y"}),
    ],
)
def test_links_that_cannot_be_are_refused(subject: str, link: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule, match="link"):
        with_links("https://x.example/", link, subject=subject)
