"""Run OpenBao with its transit engine. Without OpenBao, a test is skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.drive.waiting import eventually
from support.real import servers
from support.real.ports import free_port

VARIABLE = "PENSTOCK_TEST_BAO"
_CONFIG = """
storage "inmem" {{}}
listener "tcp" {{
  address = "127.0.0.1:{port}"
  tls_disable = true
}}
api_addr = "http://127.0.0.1:{port}"
"""


def program() -> str:
    """Return the path of `bao`; skip the test where there is none."""
    found = os.environ.get(VARIABLE) or shutil.which("bao")
    if found is None:
        pytest.skip(f"no OpenBao: {VARIABLE} names no program `bao`, and the PATH has none")
    return found


@dataclass(slots=True)
class Bao:
    """A running server, unsealed, with the engine at `transit` and the key `penstock`."""

    url: str
    _http: httpx.AsyncClient
    _unseal_key: str

    @property
    def key(self) -> str:
        """The URL of the key, as PENSTOCK_KMS_URL has it."""
        return f"{self.url}/v1/transit/keys/penstock"

    async def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Make a request as root; return the answer's `data`."""
        answer = await self._http.request(method, f"{self.url}/v1/{path}", json=body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json().get("data") or {} if answer.content else {}
        return found

    async def token(self, *calls: str) -> str:
        """Return a token that may make these calls with the key, and nothing else."""
        rules = "\n".join(
            f'path "transit/{call}/penstock" {{ capabilities = ["update"] }}' for call in calls
        )
        name = "-".join(calls)
        await self.call("PUT", f"sys/policies/acl/{name}", policy=rules)
        answer = await self._http.post(
            f"{self.url}/v1/auth/token/create", json={"policies": [name], "no_parent": True}
        )
        return str(answer.json()["auth"]["client_token"])

    async def seal(self) -> None:
        await self.call("PUT", "sys/seal")

    async def unseal(self) -> None:
        await self.call("PUT", "sys/unseal", key=self._unseal_key)

        async def is_active() -> bool:
            return (await self._http.get(f"{self.url}/v1/sys/health")).status_code == 200

        await eventually(is_active, 30, "OpenBao is active")


@asynccontextmanager
async def bao(folder: Path) -> AsyncIterator[Bao]:
    """Run a server for one test."""
    command, port = program(), free_port()
    url = f"http://127.0.0.1:{port}"
    config = folder / "bao.hcl"
    config.write_text(_CONFIG.format(port=port))
    process = servers.start(
        "bao",
        [command, "server", f"-config={config}"],
        log=folder / "bao.log",
        owner_pid=os.getpid(),
        env={"HOME": str(folder)},
    )
    try:
        async with httpx.AsyncClient(timeout=30) as http:

            async def answers() -> bool:
                try:
                    return (await http.get(f"{url}/v1/sys/seal-status")).is_success
                except httpx.TransportError:
                    return False

            await eventually(answers, 60, "OpenBao")
            shares = {"secret_shares": 1, "secret_threshold": 1}
            made = (await http.put(f"{url}/v1/sys/init", json=shares)).json()
            http.headers["x-vault-token"] = made["root_token"]
            server = Bao(url, http, made["keys"][0])
            await server.unseal()
            await server.call("POST", "sys/mounts/transit", type="transit")
            await server.call("POST", "transit/keys/penstock")
            yield server
    finally:
        process.stop()
