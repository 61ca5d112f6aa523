"""No credential reaches a log, whatever the form in which it is logged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from penstock.telemetry import RedactingFormatter, redact
from support.fakes.guarded_server import Guarded, bearer
from support.fakes.issuer import token

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
STREAM_TOKEN = "pst_" + "Ab-_" * 10 + "xyz"
SERVICE_TOKEN = "psv_" + "Ab-_" * 10 + "xyz"
SIGNING = "whsec_" + "Ef+/" * 8 + "g="
LINK = "pln_" + "Cd-_" * 10 + "xyz"
OPAQUE = "kept-private-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {OPAQUE}",
        f"authorization: bearer {OPAQUE}",
        f"Authorization: Basic {OPAQUE}",
        f"Proxy-Authorization: Basic {OPAQUE}",
        f"{{'authorization': 'Bearer {OPAQUE}', 'host': 'x'}}",
        f"[(b'authorization', b'Bearer {OPAQUE}'), (b'host', b'x')]",
        f"Headers({{'authorization': 'Bearer {OPAQUE}'}})",
        f'{{"authorization": "Bearer {OPAQUE}"}}',
        f"the header was Bearer {OPAQUE}",
        f"Cookie: session={OPAQUE}; other={OPAQUE}",
        f"cookie: __Host-penstock_token={OPAQUE}; __Host-penstock_csrf={OPAQUE}",
        f"[(b'cookie', b'a=b; penstock_token={OPAQUE}')]",
        f"{{'cookie': 'a={OPAQUE}'}}",
        f"Set-Cookie: penstock_token={OPAQUE}; HttpOnly",
        f"penstock_csrf={OPAQUE}",
        f"X-CSRF-Token: {OPAQUE}",
        f"(b'x-csrf-token', b'{OPAQUE}')",
        f"GET /v1/runs/r1/events?token={OPAQUE} HTTP/1.1",
        f"GET /v1/events?subjects=llm.*&token={OPAQUE}&since=1",
        f"https://x.example/?access_token={OPAQUE}#top",
        f"a token {JWT} by itself",
        f"a token {STREAM_TOKEN} by itself",
        f"a token {SERVICE_TOKEN} by itself",
        f"a secret {SIGNING} by itself",
        f"GET /d/{LINK} failed",
        f"https://x.example/d/{LINK}?a=b",
    ],
)
def test_a_credential_is_taken_out_of_a_line(text: str) -> None:
    shown = redact(text)
    for secret in (OPAQUE, JWT, STREAM_TOKEN, SERVICE_TOKEN, LINK, SIGNING, "c2lnbmF0dXJl"):
        assert secret not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    "text",
    [
        "run 01a1f8ce-fd21-7646-99ac-38e357e37ec6: 12 tokens in 3 s",
        "GET /v1/runs?limit=3&tokens=4 HTTP/1.1",
        "authorization failed for alice",
        "the bearer is missing",
        "send the token of GET /v1/csrf as X-CSRF-Token, with its cookie",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text) == text


def test_what_stands_around_a_credential_stays() -> None:
    line = f"GET /v1/events?token={OPAQUE}&since=1 200 of alice"
    assert redact(line) == "GET /v1/events?token=[redacted]&since=1 200 of alice"


def test_a_line_of_json_stays_json() -> None:
    headers = {"authorization": f"Bearer {OPAQUE}", "cookie": f"a={OPAQUE}; b=2", "host": "x"}
    line = json.dumps({"event": "headers", "headers": headers, "url": f"/x?token={OPAQUE}"})
    shown = json.loads(redact(line))
    assert shown["headers"]["host"] == "x"
    assert OPAQUE not in json.dumps(shown)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Yield what the root logger writes at level DEBUG."""
    root, output = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(RedactingFormatter(logging.Formatter()))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield output
    root.removeHandler(handler)
    root.setLevel(level)


def test_messages_arguments_and_tracebacks_are_all_covered(lines: io.StringIO) -> None:
    log = logging.getLogger("some.library")
    log.info("Authorization: Bearer %s", OPAQUE)
    log.info("headers %s", {"cookie": f"a={OPAQUE}"})
    try:
        raise ValueError(f"bad request to /x?token={OPAQUE}")
    except ValueError:
        log.exception("it failed")
    assert OPAQUE not in lines.getvalue()
    assert lines.getvalue().count("[redacted]") >= 3
    assert "Traceback" in lines.getvalue()


async def test_nothing_that_a_server_or_its_client_logs_has_a_credential(
    lines: io.StringIO, guarded: Guarded
) -> None:
    jwt = token()
    created = await guarded.http.post("/v1/tokens", json={"runs": ["r1"]}, headers=bearer(jwt))
    secret = created.json()["token"]
    guarded.held.set()
    await guarded.get(f"/v1/runs/r1/events?token={secret}")
    await guarded.get(f"/v1/runs?token={jwt}")
    await guarded.get(cookie=f"__Host-penstock_token={jwt}")
    await guarded.as_bearer(jwt, f"/v1/broken?x={OPAQUE}")
    shown = lines.getvalue()
    # The log has the requests of httpx, so the assertions below are not vacuous.
    assert "httpx" in shown or "HTTP Request" in shown
    assert jwt not in shown
    assert jwt.rpartition(".")[2] not in shown
    assert secret not in shown
