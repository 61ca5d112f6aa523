"""Service tokens in a running Penstock: made by the command line, used over HTTP, and revoked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner, Result

from penstock_cli.main import app
from support.drive.secured import Secured, bearer, secured
from support.fakes.issuer import token
from support.real.nats import NatsServer


@pytest.fixture
async def penstock(nats: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats.url) as running:
        yield running


async def cli(penstock: Secured, *words: str, scope: str = "administer") -> Result:
    """Run `penstock` in a thread, as a caller with this scope."""
    environment = {"PENSTOCK_TOKEN": token(sub="root", scope=scope)}
    return await asyncio.to_thread(
        CliRunner().invoke, app, [*words, "--url", penstock.url], env=environment
    )


async def test_the_command_line_makes_lists_and_revokes_tokens(penstock: Secured) -> None:
    rights = ("--scope", "decide,read", "--role", "bots", "--tool", "get_*", "--lifetime", "2h")
    made = await cli(penstock, "tokens", "create", "n8n", *rights)
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert secret.startswith("psv_")
    assert "service-token:n8n" in made.stderr
    headers = {"authorization": f"Bearer {secret}"}
    assert (await penstock.http.get("/v1/approvals", headers=headers)).status_code == 200
    assert (await penstock.http.post("/v1/runs", json={}, headers=headers)).status_code == 403

    listed = await cli(penstock, "tokens", "list", "--json")
    (shown,) = map(json.loads, listed.stdout.splitlines())
    assert (shown["name"], shown["scopes"], shown["tools"]) == (
        "n8n",
        ["decide", "read"],
        ["get_*"],
    )
    assert shown["last_used_at"] is not None
    assert secret not in listed.stdout
    table = (await cli(penstock, "tokens", "list")).stdout
    assert shown["id"] in table
    assert "roles=bots tools=get_*" in table

    revoked = await cli(penstock, "tokens", "revoke", shown["id"])
    assert revoked.exit_code == 0, revoked.output
    assert (await penstock.http.get("/v1/approvals", headers=headers)).status_code == 401
    assert (await cli(penstock, "tokens", "list", "--json")).stdout == ""
    again = await cli(penstock, "tokens", "revoke", shown["id"])
    assert again.exit_code == 2
    assert "there is no such service token" in again.stderr


async def test_the_command_line_says_what_is_wrong(penstock: Secured) -> None:
    together = ("--scope", "decide", "--scope", "automate")
    refused = await cli(penstock, "tokens", "create", "n8n", *together)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "make two tokens" in refused.stderr
    refused = await cli(penstock, "tokens", "create", "n8n", "--scope", "read", scope="read")
    assert refused.exit_code == 2
    assert "administer" in refused.stderr


async def test_a_machine_reads_and_starts_its_own_runs_only(penstock: Secured) -> None:
    headers, _ = await penstock.service_token(scopes=["start", "read"])
    body = {"agent": "assistant", "message": "Hello"}
    started = await penstock.http.post("/v1/runs", json=body, headers=headers)
    assert started.json()["user_id"] == "service-token:machine"
    run = await penstock.run()
    mine = f"/v1/runs/{started.json()['run_id']}"
    assert (await penstock.http.get(mine, headers=headers)).status_code == 200
    assert (await penstock.http.get(f"/v1/runs/{run.run_id}", headers=headers)).status_code == 404
    assert (await penstock.http.get(mine, headers=bearer())).status_code == 404
    for_alice = body | {"user_id": "alice"}
    refused = await penstock.http.post("/v1/runs", json=for_alice, headers=headers)
    assert refused.status_code == 403


async def test_a_token_of_another_process_is_known_and_its_revocation_too(
    nats: NatsServer, penstock: Secured
) -> None:
    """Each request reads the token's record from NATS, so no process needs to be told."""
    async with secured(nats.url) as other:
        headers, token_id = await penstock.service_token()
        assert (await other.http.get("/v1/approvals", headers=headers)).status_code == 200
        gone = await penstock.http.delete(
            f"/v1/service-tokens/{token_id}", headers=bearer("root", scope="administer")
        )
        assert gone.status_code == 204
        assert (await other.http.get("/v1/approvals", headers=headers)).status_code == 401
