"""Each NATS user may use its own subjects; a real server refuses all other subjects."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.bus import Bus, BusSettings, StartUpError
from penstock.bus.admin import permissions, subscribers
from penstock.bus.admin.permissions import NAMES, OPERATOR, SUBSCRIBER
from support.drive.bus import all_processed, connected, event, new_run_id
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.real.nats import NatsServer, binary, login

RUN = "0198c5a0-7b1e-7c3a-9d52-4f6e8a1b2c3d"
DEPLOY = ROOT / "deploy" / "nats"

WITH_ROUTES = {"edge", "approvals", "automations", "workflows", "console"}
SERVICES = WITH_ROUTES | {"connector", "normalizer"}

# Subjects to publish on, each with the users that may publish there besides the operator.
PUBLISH: Mapping[str, set[str]] = {
    # commands and decisions
    f"command.connector.start.{RUN}": {"edge", "automations", "workflows", "normalizer"},
    f"command.connector.continue.{RUN}": {"approvals", "normalizer"},
    f"command.connector.cancel.{RUN}": {
        *("edge", "connector", "approvals", "workflows", "normalizer"),
    },
    f"command.workflows.start.{RUN}": {"edge", "automations", "workflows", "normalizer"},
    f"command.workflows.cancel.{RUN}": {"edge", "approvals", "workflows", "normalizer"},
    f"command.workflows.continue.{RUN}": {"approvals", "normalizer"},
    f"command.approvals.replay.{RUN}": {"normalizer"},
    "decide.1": {"edge", "automations"},
    "link.1": {"automations", "edge"},
    f"hold.{RUN}": {"edge"},
    "letter.1": {"edge"},
    # frames and events of runs
    f"raw.{RUN}.upstream": {"connector"},
    f"raw.{RUN}.edge": {"edge"},
    f"raw.{RUN}.approvals": {"approvals"},
    f"raw.{RUN}.automations": {"automations"},
    f"raw.{RUN}.workflows": {"workflows"},
    f"raw.{RUN}.normalizer": {"normalizer"},
    f"rawp.1.{RUN}.upstream": set(),
    f"lifecycle.completed.{RUN}": {"normalizer"},
    f"approval.decided.{RUN}": {"normalizer"},
    f"live.llm.stream.{RUN}": set(),
    f"frames.{RUN}.upstream": set(),
    f"deadletter.edge.{RUN}": {"edge", "normalizer"},
    # between services
    f"control.{RUN}": {"connector"},
    "handover.leg": {"connector"},
    "turn.1": {"connector", "edge"},
    # records in key-value buckets
    f"$KV.runs.{RUN}": {"edge", "normalizer", "automations", "workflows"},
    "$KV.approvals.1": {"approvals", "normalizer"},
    "$KV.sessions.1": {"connector", "edge", "automations", "workflows", "normalizer"},
    f"$KV.claims.claim.{RUN}": {"connector"},
    "$KV.sent.1": {"connector"},
    f"$KV.pauses.{RUN}": {"normalizer"},
    "$KV.cursors.1.n8n": {"edge"},
    "$KV.tokens.1": WITH_ROUTES,
    "$KV.tokens.service.1": WITH_ROUTES,
    "$KV.tokens.link.1": {"approvals"},
    "$KV.idempotency.1": {"edge", "workflows"},
    "$KV.rules.1": {"automations"},
    "$KV.workflows.v.code_review.1.2": {"workflows"},
    "$KV.workflows.latest.code_review": {"workflows"},
    "$KV.policies.current": {"approvals"},
    "$KV.policies.budgets": {"approvals"},
    "$KV.policies.redactions.1": {"approvals"},
    "$KV.endpoints.pod.1": {"automations"},
    "$KV.letters.automations.1": {"automations", "normalizer"},
    "$KV.deliveries.1": {"automations"},
    f"delivery.rule.{RUN}-1": {"automations"},
    f"schedule.automations.rule.{RUN}-1.1-0": {"automations"},
    f"schedule.approvals.{RUN}": {"approvals"},
    f"audit.{RUN}": {"approvals"},
    "audit.anchor": {"approvals"},
    # journals of workflows
    f"journal.{RUN}": {"workflows"},
    f"schedule.workflows.{RUN}.1": {"workflows"},
    f"due.workflows.{RUN}.1": set(),
    "$JS.API.STREAM.PURGE.JOURNAL": {"workflows"},
    "$JS.API.STREAM.MSG.DELETE.JOURNAL": {"normalizer"},
    "$JS.API.STREAM.MSG.GET.JOURNAL": {"workflows", "normalizer"},
    f"due.automations.rule.{RUN}-1": set(),
    "$KV.letters.1": set(),
    "$KV.checkpoints.normalizer.1": {"normalizer"},
    "$KV.leases.pod.1": {"connector"},
    "$KV.leases.normalizer.part.1": {"normalizer"},
    "$KV.leases.streams.migration": set(),
    # reads of buckets and streams that only some users may read
    "$JS.API.STREAM.MSG.GET.KV_tokens": WITH_ROUTES,
    "$JS.API.DIRECT.GET.KV_tokens": WITH_ROUTES,
    "$JS.API.DIRECT.GET.KV_tokens.$KV.tokens.1": set(),
    "$JS.API.STREAM.MSG.GET.KV_approvals": {"edge", "approvals", "connector", "normalizer"},
    "$JS.API.STREAM.MSG.GET.KV_letters": {"edge", "normalizer"},
    "$JS.API.STREAM.MSG.GET.AUDIT": {"approvals", "normalizer"},
    "$JS.API.STREAM.PURGE.AUDIT": set(),
    "$JS.API.STREAM.MSG.DELETE.AUDIT": set(),
    "$JS.API.STREAM.MSG.GET.KV_rules": {"automations"},
    "$JS.API.STREAM.MSG.GET.KV_workflows": {"edge", "automations", "workflows"},
    "$JS.API.STREAM.MSG.GET.DEADLETTERS": {"edge", "normalizer"},
    "$JS.API.DIRECT.GET.RAW": set(NAMES) - {OPERATOR, SUBSCRIBER, "console"},
    "$JS.API.CONSUMER.CREATE.RAW": {"normalizer"},
    "$JS.API.CONSUMER.CREATE.EVENTS": set(),
    "$JS.API.CONSUMER.CREATE.EVENTS.mine.llm.>": set(),
    "$JS.API.CONSUMER.CREATE.KV_tokens": set(),
    "$JS.API.CONSUMER.DURABLE.CREATE.EVENTS.approvals": {"approvals"},
    "$JS.API.CONSUMER.DURABLE.CREATE.EVENTS.mine": set(),
    "$JS.API.CONSUMER.MSG.NEXT.COMMANDS.connector-start": {"connector"},
    "$JS.API.CONSUMER.MSG.NEXT.EVENTS.subscriber": set(),
    # what subscribers may ask for besides their durable
    f"large.{RUN}.1.0": {SUBSCRIBER},
    f"runkey.subscriber.{RUN}": {SUBSCRIBER},
    f"runkey.other.{RUN}": set(),
    "$JS.penstock.API.DIRECT.GET.KV_checkpoints.$KV.checkpoints.shards": {SUBSCRIBER},
    "$JS.penstock.API.DIRECT.GET.KV_checkpoints.$KV.checkpoints.marks": set(),
    "$JS.penstock.API.DIRECT.GET.KV_checkpoints": set(),
    "$JS.penstock.API.DIRECT.GET.OBJ_payloads": set(),
    "$JS.ACK.COMMANDS.connector-start.1.1.1.1.0": {"connector"},
    "$JS.API.CONSUMER.DELETE.EVENTS.approvals": set(),
    # changes of the streams themselves
    "$JS.API.STREAM.CREATE.MINE": set(),
    "$JS.API.STREAM.UPDATE.EVENTS": set(),
    "$JS.API.STREAM.DELETE.EVENTS": set(),
    "$JS.API.STREAM.PURGE.KV_approvals": set(),
    "$JS.API.STREAM.PURGE.KV_runs": set(),
    "$JS.API.STREAM.PURGE.EVENTS": {"normalizer"},
    "$JS.API.STREAM.MSG.DELETE.COMMANDS": {"normalizer"},
    "$JS.API.STREAM.MSG.DELETE.SCHEDULES": {"automations", "approvals", "workflows"},
    "$JS.API.STREAM.PURGE.SCHEDULES": {"approvals", "workflows"},
    "$JS.API.STREAM.MSG.DELETE.EVENTS": {"normalizer"},
    "$JS.API.STREAM.MSG.DELETE.KEYS": {"normalizer"},
    "$JS.API.STREAM.MSG.GET.KEYS": SERVICES,
    "$JS.API.DIRECT.GET.KEYS": set(),
    f"key.{RUN}": SERVICES - {"console"},
    f"keygone.{RUN}": {"normalizer"},
    "$JS.API.STREAM.SNAPSHOT.KV_approvals": set(),
    "$JS.API.STREAM.RESTORE.KV_approvals": set(),
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.EVENTS.approvals": set(),
    # inboxes of other users
    "_INBOX_edge.1": set(),
    "_INBOX.1": set(),
}
# Subjects to subscribe to, each with the users that may do so besides the operator.
SUBSCRIBE: Mapping[str, set[str]] = {
    **{f"{permissions.inbox_prefix(name)}.>": {name} for name in NAMES if name != OPERATOR},
    "_INBOX.>": set(),
    "_INBOX_operator.>": set(),
    ">": set(),
    "live.>": {"edge", SUBSCRIBER},
    "frames.>": {"edge"},
    "decide.*": {"approvals"},
    "link.*": {"approvals"},
    "hold.*": {"approvals"},
    "letter.*": {"normalizer"},
    "control.*": {"connector"},
    "handover.leg": {"connector"},
    "turn.*": {"connector", "edge"},
    "keygone.*": SERVICES | {SUBSCRIBER},
    "large.*.*.*": {"edge"},
    "runkey.*.*": {"edge"},
    "raw.>": set(),
    "command.>": set(),
    "llm.>": set(),
    "$KV.>": set(),
    "$KV.approvals.*": {"approvals"},
    "$KV.tokens.>": set(),
    "deadletter.>": set(),
    "$JS.ACK.>": set(),
    "$JS.API.>": set(),
    "$JS.EVENT.>": set(),
    "$SYS.>": set(),
}
_REFUSED = re.compile(r'Violation for (\w+) to "(.+?)"', re.IGNORECASE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server for refusals: its log may contain permission violations."""
    server = NatsServer(tmp_path_factory.mktemp("permissions"), name="nats", violations=True)
    server.start()
    yield server
    server.remove()


@asynccontextmanager
async def client_of(server: NatsServer, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """Connect as this user; yield the client and the errors that the server has sent to it."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(server.url, error_cb=on_error, **login(user))
    try:
        yield client, refused
    finally:
        await client.close()


def told(refused: list[str]) -> set[str]:
    """Return the refused subjects. They are in lower case, since nats-py lowers its error texts."""
    return {match[2] for text in refused if (match := _REFUSED.search(text))}


@pytest.mark.parametrize("user", [name for name in NAMES if name != OPERATOR])
async def test_a_user_may_publish_what_the_table_says_and_nothing_else(
    server: NatsServer, user: str
) -> None:
    forbidden = {subject.lower() for subject, users in PUBLISH.items() if user not in users}
    async with client_of(server, user) as (client, refused):
        for subject in PUBLISH:
            await client.publish(subject, b"{}")
        # The server has sent all refusals.
        await all_processed(client)

        async def all_told() -> bool:
            return len(told(refused)) >= len(forbidden)

        await eventually(all_told, what="every refusal")
    assert told(refused) == forbidden


@pytest.mark.parametrize("user", [name for name in NAMES if name != OPERATOR])
async def test_a_user_may_listen_to_what_the_table_says_and_nothing_else(
    server: NatsServer, user: str
) -> None:
    forbidden = {subject.lower() for subject, users in SUBSCRIBE.items() if user not in users}
    async with client_of(server, user) as (client, refused):
        for subject in SUBSCRIBE:
            await client.subscribe(subject)
        await all_processed(client)

        async def all_told() -> bool:
            return len(told(refused)) >= len(forbidden)

        await eventually(all_told, what="every refusal")
    assert told(refused) == forbidden


async def test_the_operator_is_refused_nothing(server: NatsServer) -> None:
    """If the operator were also refused, the refusals of other users would prove nothing."""
    async with client_of(server, OPERATOR) as (client, refused):
        for subject in SUBSCRIBE:
            await client.subscribe(subject)
        for subject in ("decide.1", "turn.1", "live.llm.stream.1"):
            await client.publish(subject, b"{}")
        await all_processed(client)
    assert refused == []


async def test_a_caller_without_a_user_is_refused(tmp_path: Path) -> None:
    quoted = {name: f'"of-the-{name}"' for name in NAMES}
    config = permissions.configuration(quoted)
    server = NatsServer(tmp_path, name="nats without guests", config=config, users=False)
    server.start()
    try:
        for user, password in ((None, None), ("edge", "guessed"), ("admin", "admin")):
            wanted = BusSettings(url=server.url, user=user, password=password)
            with pytest.raises(StartUpError, match="Authorization Violation"):
                await Bus.connect(wanted, ensure=False)
    finally:
        server.remove()


# subscribers


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    """Connect as the operator to a server with all streams, and empty EVENTS."""
    async with connected(server.url) as bus:
        await subscribers.ensure(bus)
        await bus.api("STREAM.PURGE.EVENTS")
        yield bus


async def test_a_subscriber_hears_what_comes_and_reads_each_event_once(
    server: NatsServer, bus: Bus
) -> None:
    live: list[str] = []
    run_id = new_run_id()
    async with client_of(server, SUBSCRIBER) as (client, refused):

        async def hear(msg: Msg) -> None:
            live.append(msg.subject)

        await client.subscribe("live.>", cb=hear)
        await all_processed(client)
        for number in range(1, 4):
            await bus.publisher.publish(event(run_id, number))
        js = client.jetstream(domain=permissions.DOMAIN)
        durable = await js.pull_subscribe_bind(durable=SUBSCRIBER, stream="EVENTS")
        messages = await durable.fetch(batch=3, timeout=5)
        assert [message.data for message in messages] == [b"1", b"2", b"3"]
        for message in messages:
            await message.ack_sync()
        info = await durable.consumer_info()
        assert (info.num_ack_pending, info.num_pending) == (0, 0)

        async def heard_three() -> bool:
            return len(live) == 3

        await eventually(heard_three, 30, "the client has heard three events")
        assert live == [f"live.llm.stream.{run_id}"] * 3
        assert refused == []


async def test_nothing_that_a_subscriber_may_ask_for_can_be_sent_elsewhere(
    server: NatsServer, bus: Bus
) -> None:
    """A JetStream request names the subject of its answer; no publish permission limits it."""
    heard: list[str] = []
    own = permissions.READERS[0].publish
    asked = [*own[:2], own[3], f"large.{RUN}.1.0", f"runkey.subscriber.{RUN}"]
    assert own[4:6] == (permissions.LARGE_EVENTS, "runkey.subscriber.*")

    async def hear(msg: Msg) -> None:
        heard.append(msg.subject)

    async def answer(msg: Msg) -> None:  # as an edge does
        await msg.respond(b"the event")

    await bus.client.subscribe("decide.*", cb=hear)
    await bus.client.subscribe(permissions.LARGE_EVENTS, cb=answer)
    await bus.client.subscribe(permissions.KEY_REQUESTS, cb=answer)
    await bus.publisher.publish(event(new_run_id(), 1))
    elsewhere = ["decide.1", "$KV.approvals.1", f"command.connector.continue.{RUN}"]
    elsewhere += [f"raw.{RUN}.upstream", f"approval.decided.{RUN}", f"control.{RUN}"]
    names = ("COMMANDS", "RAW", "EVENTS", "KV_approvals")
    before = [(await bus.api(f"STREAM.INFO.{name}"))["state"]["last_seq"] for name in names]
    async with client_of(server, SUBSCRIBER) as (client, refused):
        for reply in elsewhere:
            for subject in asked:
                await client.publish(subject, b'{"batch": 1, "no_wait": true}', reply)
        # The server answers in order, so it has already answered the earlier requests.
        await client.request(permissions.READERS[0].publish[0], b"", timeout=5)
        assert refused == []
    after = [(await bus.api(f"STREAM.INFO.{name}"))["state"]["last_seq"] for name in names]
    assert (after, heard) == (before, [])


async def test_that_is_why_subscribers_have_an_account_of_their_own(tmp_path: Path) -> None:
    """A reader in the operator's account could overwrite an approval with a reader's permissions.

    If NATS ever checks where answers go, this test fails, and subscribers no longer need an account
    of their own.
    """
    config = """authorization { users: [
      {user: operator, password: x}
      {user: reader, password: x, permissions: {
        publish: ["$JS.API.CONSUMER.INFO.EVENTS.subscriber"], subscribe: ["_INBOX_reader.>"]}}
    ] }"""
    server = NatsServer(tmp_path, name="nats with one account", config=config, users=False)
    server.start()
    try:
        async with connected(server.url, user="operator", password="x") as bus:
            await subscribers.ensure(bus)
            reader = await nats.connect(server.url, user="reader", password="x")
            await reader.publish(
                "$JS.API.CONSUMER.INFO.EVENTS.subscriber", b"", reply="$KV.approvals.1"
            )
            await all_processed(reader)

            async def written() -> bool:
                return await bus.bucket("approvals").get("1") is not None

            await eventually(written, what="the answer in the bucket")
            await reader.close()
    finally:
        server.remove()


# the files in deploy/nats


def test_the_configuration_for_deployments_is_made_from_the_table() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "penstock.bus.admin.permissions"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert (DEPLOY / "accounts.conf").read_text() == made, "run `make contract`"


async def test_a_server_starts_from_that_configuration_and_knows_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(permissions.password_variable(name), login(name)["password"])
    checked = subprocess.run(
        [binary(), "-c", DEPLOY / "nats.conf", "-t"], capture_output=True, check=False, text=True
    )
    assert checked.returncode == 0, checked.stderr
    config = (DEPLOY / "accounts.conf").read_text()
    server = NatsServer(tmp_path, name="deployed nats", users=False, config=config)
    server.start()
    try:
        async with connected(server.url, **login(OPERATOR)):
            pass
        for name in NAMES:
            async with client_of(server, name) as (client, refused):
                await all_processed(client)
                assert refused == []
    finally:
        server.remove()
