"""What an administrator sees of the deployment over HTTP, and the replay of dead letters."""

from __future__ import annotations

from functools import partial

from penstock.bus import Message
from penstock.bus.subjects import raw
from penstock.settings import Config, Settings
from penstock_normalizer.service import NormalizerService
from support.drive.bus import new_run_id
from support.drive.dead_letters import a_cancel, buried, letter_about
from support.drive.secured import bearer, secured, served
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.real.ports import free_port

ROOT = bearer("root", scope="administer")


async def test_an_administrator_gets_the_verdicts_and_replays_a_dead_letter_once(
    fresh_nats: NatsServer,
) -> None:
    async with secured(fresh_nats.url) as penstock:
        http, path = penstock.http, "/v1/dead-letters"
        cancel = await buried(penstock.bus, letter_about(a_cancel(), b"a secret"))
        frame = await buried(
            penstock.bus, letter_about(f"rawp.3.{new_run_id()}.x", service="normalizer")
        )
        told = (await http.get("/v1/system", headers=ROOT)).json()
        verdicts = {each["check"]: each["verdict"] for each in told["findings"]}
        assert (verdicts["nats"], verdicts["streams"], verdicts["clock"]) == ("ok", "ok", "ok")
        assert verdicts["dead_letters"] == "wrong"
        for each in told["findings"]:
            if each["verdict"] == "not_checked":
                assert "in a terminal" in each["to_do"], each
        assert told["dead_letters"] == 2
        assert {"stream": "EVENTS", "name": "approvals", "polled": True}.items() <= next(
            each
            for each in told["consumers"]
            if each["name"] == "approvals" and each["stream"] == "EVENTS"
        ).items()
        assert {each["name"] for each in told["streams"]} >= {"EVENTS", "RAW", "DEADLETTERS"}
        assert len(told["partitions"]) > 1

        page = await http.get(path, params={"limit": "1"}, headers=ROOT)
        [first] = page.json()["dead_letters"]
        assert (first["number"], first["state"]) == (cancel.number, "waiting")
        assert "a secret" not in page.text
        rest = await http.get(path, params={"after": page.json()["next"]}, headers=ROOT)
        assert [each["number"] for each in rest.json()["dead_letters"]] == [frame.number]
        assert rest.json()["next"] is None

        replay = f"{path}/{cancel.number}/replay"
        assert (await http.post(replay, headers=ROOT)).status_code == 503, "no normalizer is there"
        normalizer = Settings(nats_url=fresh_nats.url, probe_port=free_port())
        async with served(normalizer, Config(), [NormalizerService]):
            done = await http.post(replay, headers=ROOT)
            assert (done.status_code, done.json()["outcome"]) == (200, "replayed")
            again = await http.post(replay, headers=ROOT)
            assert (again.status_code, again.json()["outcome"]) == (200, "already")
            refused = await http.post(f"{path}/{frame.number}/replay", headers=ROOT)
            assert (refused.status_code, "drop the letter" in refused.text) == (409, True)
            for number in ("999", "0", "x", "9" * 30):
                missing = await http.post(f"{path}/{number}/replay", headers=ROOT)
                assert missing.status_code == 404, number
        shown = (await http.get(path, headers=ROOT)).json()["dead_letters"]
        assert [each["state"] for each in shown] == ["replayed", "waiting"]


async def test_a_plain_user_learns_which_services_answer(fresh_nats: NatsServer) -> None:
    async with secured(fresh_nats.url) as penstock:
        plain = bearer("ada", scope="read")
        told = (await penstock.http.get("/v1/health", headers=plain)).json()
        services = {each["name"]: each["answers"] for each in told["services"]}
        assert services["approvals"]
        assert services["workflows"]
        assert services["normalizer"] is False, "none was started"
        # Frames wait for Alice's run alone.
        run = await penstock.live()
        sent = Message(raw(run.run_id, "c1"), b"{}", {"Nats-Msg-Id": run.run_id})
        await penstock.bus.publisher.publish(sent)

        async def behind(user: str) -> int:
            answer = await penstock.http.get("/v1/health", headers=bearer(user, scope="read"))
            found: int = answer.json()["frames_behind"]
            return found

        await eventually(partial(behind, "alice"), 20, "the next look at NATS")
        assert await behind("ada") == 0
        unknown = await penstock.http.get("/v1/health", headers=bearer("ada", scope="decide"))
        assert unknown.status_code == 403


async def test_nobody_else_sees_or_replays_anything(fresh_nats: NatsServer) -> None:
    async with secured(fresh_nats.url) as penstock:
        for method, path in (
            ("GET", "/v1/system"),
            ("GET", "/v1/dead-letters"),
            ("POST", "/v1/dead-letters/1/replay"),
        ):
            ada = bearer("ada", scope="read start decide automate workflow act-as")
            assert (await penstock.http.request(method, path, headers=ada)).status_code == 403
