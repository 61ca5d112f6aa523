"""A rule can give its webhook a method, headers and a body, which Slack, Teams and GitHub accept,
and by which no text of a user becomes a part of the request."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
import yaml
from standardwebhooks.webhooks import Webhook

from penstock.events.examples import example
from penstock_automations.actions.executor import Occurrence
from penstock_automations.actions.webhook.exchange import Answer, Sender, verdict
from penstock_automations.actions.webhook.preparing import Request, request_of
from penstock_automations.guard import Guard
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.hidden import secrets_of, with_hidden_secrets
from penstock_automations.rules.model import Rule
from support.drive.automations import automations, rule
from support.drive.repository import ROOT
from support.fakes import apis
from support.fakes.receiver import SECRET, Received, answers, echoes
from support.real.nats import NatsServer

RUN_ID = "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e"
URL = "https://hook.example/x"
AT = 1_700_000_000.0
LINKS = [{"role": "finance", "url": "https://p.example/d/abc", "expires_at": "x"}]


def requested(
    webhook: dict[str, Any], type_: str = "llm.tool_call", *, max_bytes: int = 10**6, **data: Any
) -> Request:
    """Return the request of a rule with this webhook, for the example of a type of events; `data`
    has other values of its data."""
    fields = {"url": URL, "secrets": [SECRET], **webhook}
    made = read_rule({"id": "r", "subjects": [type_], "action": {"webhook": fields}}, Rule)
    event = orjson.loads(example(type_).dump())
    event["data"] |= data
    job = Job("r", 1, "u", type_, EventSource(RUN_ID, 3, 1, 1))
    return request_of(
        made,
        job,
        Occurrence(orjson.dumps(event)),
        unix_s=AT,
        max_bytes=max_bytes,
        links=LINKS if fields.get("links") else (),
    )


def test_a_body_is_filled_with_values_of_their_own_types_and_is_signed() -> None:
    body = {"text": "tool {{ event.data.tool }}", "args": "{{ event.data.args }}", "n": 7}
    request = requested({"body": body, "method": "PUT"}, tool='a"b\n', args={"x": [1]})
    assert orjson.loads(request.body) == {"text": 'tool a"b\n', "args": {"x": [1]}, "n": 7}
    at = datetime.fromtimestamp(AT, UTC)
    wanted = Webhook(SECRET).sign(request.headers["webhook-id"], at, request.body.decode())
    assert request.headers["webhook-signature"] == wanted
    assert (request.head.method, request.head.body_bytes) == ("PUT", len(request.body))


def test_a_get_has_no_body_and_is_signed_nevertheless() -> None:
    request = requested({"method": "GET"})
    assert request.body == b""
    assert "content-type" not in request.headers
    assert request.headers["webhook-signature"].startswith("v1,")


def test_links_of_an_approval_can_be_anywhere_in_the_body() -> None:
    webhook = {"links": [{"role": "finance"}], "body": {"decide": "{{ links[0].url }}"}}
    request = requested(webhook, "approval.requested")
    assert orjson.loads(request.body) == {"decide": LINKS[0]["url"]}
    assert "abc" in request.secrets, "a receiver that answers with the link shows no link"


@pytest.mark.parametrize(
    "text",
    [
        "a\r\nX-Evil: 1",
        "a\nX-Evil: 1",
        "a\rX-Evil: 1",
        "a\r\n\r\nGET /internal HTTP/1.1\r\nHost: x",
        "a\x00b",
        "a\x0b\x0cb",
        "a\x85X-Evil: 1",
        "a\u2028X-Evil: 1",
        "čď X-Evil",
        " \t a \t ",
    ],
)
async def test_a_text_of_a_user_in_a_header_stays_in_this_header(text: str) -> None:
    """The bytes are read by a server that takes them apart itself."""
    request = requested({"headers": {"X-Title": "tool {{ event.data.tool }}"}}, tool=text)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        got.append(await reader.read(len(request.body)))
        writer.write(b"HTTP/1.1 204 X\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sender = Sender(Guard(["127.0.0.1"]))
        url = f"http://127.0.0.1:{port}/hook"
        answer = await sender.send(url, request.headers, request.body, 5)
    assert isinstance(answer, Answer)
    head, body = got
    lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    assert lines[0] == "POST /hook HTTP/1.1"
    names = [line.partition(":")[0].lower() for line in lines[1:]]
    assert sorted(names) == sorted({*request.headers, "host", "content-length", "connection"})
    assert not re.search(rb"[\r\n\x00]", head.replace(b"\r\n", b""))
    [title] = [line for line in lines if line.lower().startswith("x-title: ")]
    assert title.partition(": ")[2].split() == ["tool", *_words(text)]
    assert body == request.body


def _words(text: str) -> list[str]:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028]+", " ", text).split()


@pytest.mark.parametrize(
    ("webhook", "field", "reason"),
    [
        ({"headers": {"Host": "x"}}, "headers.Host", "cannot be set"),
        ({"headers": {"Content-Length": "5"}}, "headers.Content-Length", "cannot be set"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "headers.Transfer-Encoding", "cannot"),
        *(
            ({"headers": {name: "x"}}, f"headers.{name}", "cannot be set")
            for name in ("connection", "Keep-Alive", "TE", "Trailer", "Upgrade", "Expect")
        ),
        ({"headers": {"Proxy-Connection": "x"}}, "headers.Proxy-Connection", "cannot be set"),
        ({"headers": {"webhook-id": "x"}}, "headers.webhook-id", "cannot be set"),
        ({"headers": {"Penstock-Depth": "0"}}, "headers.Penstock-Depth", "cannot be set"),
        ({"headers": {"Authorization": "x"}}, "headers.Authorization", "`auth`, which is hidden"),
        ({"headers": {"Cookie": "x"}}, "headers.Cookie", "`auth`, which is hidden"),
        ({"headers": {"X: y\r\nZ": "x"}}, "headers.X: y\r\nZ", "pattern"),
        ({"headers": {"X": "a\r\nY: b"}}, "headers.X", "one line"),
        ({"headers": {"X": "{{ evnt }}"}}, "headers.X", "no variable 'evnt'"),
        ({"headers": {"X": "a", "x": "b"}}, "headers", "there twice"),
        ({"headers": {f"x-{n}": "a" for n in range(21)}}, "headers", "at most 20"),
        ({"body": "text"}, "body", "an object or a list"),
        ({"body": {"a": ["{{ event"]}}, "body.a.0", "ends with }}"),
        ({"body": {"a": "{{ event.data.tol }}"}}, "body.a", 'did you mean "tool"?'),
        ({"body": {"a": "x" * 20_000}}, "body", "16384 bytes"),
        ({"body": {}, "method": "GET"}, "body", "a GET has no body"),
        ({"method": "TRACE"}, "method", "must be 'POST'"),
        ({"auth": {"query": {"name": "a&b", "value": "x"}}}, "auth.query.name", "pattern"),
        ({"auth": {"query": {"name": "a", "value": "x\r\ny"}}}, "auth.query.value", "pattern"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    webhook: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(InvalidRule) as refused:
        requested(webhook)
    [problem] = refused.value.problems
    assert problem["field"] == f"action.webhook.{field}"
    assert reason in problem["reason"]


def test_a_secret_in_the_url_is_encoded_hidden_and_not_in_the_record() -> None:
    auth = {"query": {"name": "sig", "value": "a/b&d="}}
    request = requested({"url": f"{URL}?v=1", "auth": auth})
    assert request.url == f"{URL}?v=1&sig=a%2Fb%26d%3D"
    assert {"a/b&d=", "a%2Fb%26d%3D", "a%2fb%26d%3d"} <= set(request.secrets)
    assert "a/b" not in str(request.head)
    assert "a%2F" not in str(request.head)


async def test_a_template_that_the_event_cannot_fill_fails_the_delivery_at_once(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        url = made.receiver.url()
        webhook = {"body": {"to": "{{ event.data.args.to }}"}}
        await made.apply(rule("mail", url, "llm.tool_call", webhook=webhook))
        run = await made.run()
        await run.open()
        await run.tool(1, to="a@example.com")
        await run.tool(2)
        outcomes = await made.outcomes(run.run_id, 2)
        failed = [each.data for each in outcomes if each.type == "automation.failed"]
        assert [each["error"]["code"] for each in failed] == ["template"]
        assert "to: the data has no event.data.args.to" in failed[0]["error"]["message"]
        assert [each.json for each in made.receiver.requests] == [{"to": "a@example.com"}]


TEXT = (ROOT / "docs" / "automations.md").read_text("utf-8")
EXAMPLES = yaml.safe_load(re.findall(r"<!-- apis -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)[0])
VARIABLES = {
    "${SLACK_TOKEN}": apis.TOKEN,
    "${TEAMS_SIG}": apis.SIGNATURE,
    "${GITHUB_TOKEN}": apis.GITHUB_TOKEN,
}


def with_values(value: Any) -> Any:
    text = orjson.dumps(value).decode()
    for name, secret in VARIABLES.items():
        text = text.replace(name, secret)
    return orjson.loads(text)


@pytest.mark.parametrize("given", EXAMPLES, ids=lambda each: each["id"])
@pytest.mark.parametrize("text", ["delete_file", 'x"}<!channel>\r\nY: z \u2028é😀', "x" * 2900])
def test_the_apis_of_slack_teams_and_github_accept_the_examples(
    given: dict[str, Any], text: str
) -> None:
    fields = with_values(given)["action"]["webhook"]
    [type_] = given["subjects"]
    item = {"id": "i1", "kind": "confirm", "tool": text}
    data: dict[str, Any] = {"items": [item], "error": text, "summary": text}
    request = requested(fields, type_, **data)
    method = fields.get("method", "POST")
    called = apis.Called(method, _target(request.url), request.headers, request.body)
    status, body = apis.answer_of(called)
    meant = verdict(Answer(status, {}, body.encode()), fields.get("expect"), 0)
    assert meant.outcome == "delivered", (status, body)
    assert orjson.dumps(text)[1:-1] in orjson.dumps(orjson.loads(request.body))
    for secret in VARIABLES.values():
        assert secret not in str(request.head)


@pytest.mark.parametrize("given", EXAMPLES, ids=lambda each: each["id"])
def test_an_example_with_a_wrong_credential_is_not_delivered(given: dict[str, Any]) -> None:
    wrong = orjson.loads(re.sub(r"\$\{\w+\}", "wrong-credential", orjson.dumps(given).decode()))
    fields = wrong["action"]["webhook"]
    request = requested(fields, given["subjects"][0])
    called = apis.Called("POST", _target(request.url), request.headers, request.body)
    status, body = apis.answer_of(called)
    meant = verdict(Answer(status, {}, body.encode()), fields.get("expect"), 0)
    assert meant.outcome == "failed", "Slack answers 200 also for a mistake"


def test_the_credentials_of_the_examples_are_hidden() -> None:
    for given in EXAMPLES:
        made = read_rule(with_values(given), Rule)
        shown = str(with_hidden_secrets(made))
        assert any(secret in dict(secrets_of(made)).values() for secret in VARIABLES.values())
        assert not any(secret in shown for secret in VARIABLES.values())


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


async def test_an_answer_that_repeats_a_secret_of_the_url_is_recorded_without_it(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        made.receiver.usual["/hook?sig=geheim"] = echoes
        webhook = {
            "auth": {"query": {"name": "sig", "value": "geheim"}},
            "headers": {"x-tool": "{{ event.data.tool }}"},
            "method": "PUT",
        }
        await made.apply(rule("q", made.receiver.url(), "llm.tool_call", webhook=webhook))
        run = await made.run()
        await run.open()
        await run.tool(1)
        await made.outcomes(run.run_id, 1)
        [received] = made.receiver.requests
        assert received.path == "/hook?sig=geheim"
        assert received.headers["x-tool"] == "get_weather"
        record = await made.delivery("q", run.run_id, 2)
        assert "geheim" not in record.dump().decode()
        assert record.request is not None
        assert (record.request.method, record.request.headers["x-tool"]) == ("PUT", "get_weather")


async def test_github_gets_the_dispatch_of_the_example_over_http(nats_server: NatsServer) -> None:
    async def api(writer: asyncio.StreamWriter, received: Received) -> None:
        called = apis.Called("POST", received.path, received.headers, received.body)
        status, body = apis.answer_of(called)
        await answers(status, body)(writer, received)

    [given] = [each for each in EXAMPLES if each["id"] == "dispatch-github"]
    async with automations(nats_server.url) as made:
        fields = with_values(given)["action"]["webhook"]
        path = urlsplit(fields["url"]).path
        made.receiver.usual[path] = api
        fields = {**fields, "url": made.receiver.url(path), "secrets": [SECRET]}
        await made.apply(rule("r", "", "lifecycle.completed", webhook=fields))
        run = await made.run()
        await run.open()
        await run.complete()
        [outcome] = await made.outcomes(run.run_id, 1)
        assert (outcome.type, outcome.data["status_code"]) == ("automation.completed", 204)
        [received] = made.receiver.requests
        assert received.json["client_payload"] == {"run_id": run.run_id, "summary": "done"}


async def test_a_get_is_sent_without_a_body() -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 X\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/ping?x=1"
        request = requested({"method": "GET", "url": "https://hook.example/"})
        answer = await Sender(Guard(["127.0.0.1"])).send(url, request.headers, b"", 5, "GET")
    assert isinstance(answer, Answer)
    assert got[0].startswith(b"GET /ping?x=1 HTTP/1.1\r\n")
    assert b"content-length" not in got[0].lower()
