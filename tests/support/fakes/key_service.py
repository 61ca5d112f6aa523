"""A key service in memory, in place of OpenBao, for tests in which it misbehaves or is away."""

from __future__ import annotations

import json
from typing import Any

from penstock.settings import Settings
from support.fakes.misbehaving import Request

TOKEN = "token-of-the-test"


class Transit:
    """Answers as the transit engine does; `Misbehaving.other` calls it with each request."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, request: Request) -> tuple[int, Any]:
        if request.headers.get("x-vault-token") != TOKEN:
            return 403, {"errors": ["permission denied"]}
        body = json.loads(request.body)
        if request.path == "/v1/transit/encrypt/penstock":
            wrapped = f"vault:v1:{len(self._texts)}"
            self._texts[wrapped] = body["plaintext"]
            return 200, {"data": {"ciphertext": wrapped}}
        text = self._texts.get(body.get("ciphertext", ""))
        if request.path == "/v1/transit/decrypt/penstock" and text is not None:
            return 200, {"data": {"plaintext": text}}
        return 400, {"errors": ["cipher: message authentication failed"]}


def settings_for(url: str, *keys: str) -> Settings:
    """Return settings whose key service is at this URL."""
    return Settings(
        kms_url=f"{url}/v1/transit/keys/penstock", kms_token=TOKEN, content_keys=tuple(keys)
    )
