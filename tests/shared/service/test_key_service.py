"""A key service opens wrapped content keys at the start; a wrong answer seals and opens nothing."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.bus import NotThereYet, StartUpError
from penstock.bus.sealing import KEY_BYTES, master_id
from penstock.service import bus_settings, key_service, open_content_keys
from penstock.service.key_service import wrapped_key
from penstock.settings import ConfigurationError, Settings
from penstock_cli.main import app
from support.fakes.key_service import TOKEN, Transit, settings_for
from support.fakes.misbehaving import (
    Answer,
    Misbehaving,
    Request,
    Script,
    cuts,
    misbehaving,
    stalls,
)
from support.real.bao import Bao, bao

KEY, OTHER = "k" * 32, "o" * 32
WRAPPED = f"kms:{master_id(KEY)}:vault:v1:wrapped"


@pytest.fixture
async def service() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as made:
        made.other = Transit()
        yield made


async def test_a_wrapped_key_is_opened_beside_keys_in_clear(service: Misbehaving) -> None:
    present = await wrapped_key(settings_for(service.url, KEY), present=True)
    new = await wrapped_key(settings_for(service.url))
    settings = settings_for(service.url, new, OTHER, present, "none")
    first, *others = (await open_content_keys(settings)).content_keys
    assert others == [OTHER, KEY, "none"]
    assert len(bytes.fromhex(first)) == KEY_BYTES
    assert present.startswith(f"kms:{master_id(KEY)}:")
    assert new.startswith(f"kms:{master_id(first)}:")


async def test_without_a_wrapped_key_nobody_is_asked(service: Misbehaving) -> None:
    settings = settings_for(service.url, KEY, "none")
    assert await open_content_keys(settings) == settings
    assert service.requests == []


async def test_a_token_in_a_file_is_read_for_each_request(
    service: Misbehaving, tmp_path: Path
) -> None:
    word = await wrapped_key(settings_for(service.url, KEY), present=True)
    file = tmp_path / "token"
    settings = settings_for(service.url, word).model_copy(update={"kms_token": f"file:{file}"})
    with pytest.raises(NotThereYet, match="PENSTOCK_KMS_TOKEN"):
        await open_content_keys(settings)
    file.write_text("an old one\n")
    with pytest.raises(StartUpError, match="permission denied"):
        await open_content_keys(settings)
    file.write_text(f"{TOKEN}\n")
    assert (await open_content_keys(settings)).content_keys == (KEY,)


def plaintext(text: str) -> dict[str, Any]:
    return {"data": {"plaintext": b64encode(text.encode()).decode()}}


@pytest.mark.parametrize(
    ("status", "body", "is_wait", "says"),
    [
        (403, {"errors": ["permission denied"]}, False, "403 for decrypt ('permission denied')"),
        (404, {"errors": []}, False, "404 for decrypt: check PENSTOCK_KMS_URL"),
        (400, {"errors": ["encryption key not found"]}, False, "encryption key not found"),
        (307, {}, False, "307"),
        (429, {"errors": ["too many"]}, True, "429"),
        (503, {"errors": ["Vault is sealed"]}, True, "Vault is sealed"),
        (500, "no object", True, "500"),
        (200, [], False, "200 for decrypt"),
        (200, {"data": {"plaintext": 7}}, False, "200 for decrypt"),
        (200, {"data": {"plaintext": "no base64"}}, False, "no key"),
        (200, {"data": {"plaintext": "/////w=="}}, False, "no key"),
        (200, plaintext(OTHER), False, f"the key {master_id(OTHER)}, and PENSTOCK_CONTENT_KEYS"),
        (200, {"data": {"plaintext": "a" * 100_000}}, False, "no key"),
    ],
)
async def test_an_answer_that_is_not_the_key_opens_nothing(
    service: Misbehaving, status: int, body: Any, is_wait: bool, says: str
) -> None:
    service.other = lambda request: (status, body)
    with pytest.raises(StartUpError) as refused:
        await open_content_keys(settings_for(service.url, WRAPPED))
    assert isinstance(refused.value, NotThereYet) == is_wait  # whether a starting service waits
    assert says in str(refused.value)
    assert service.url in str(refused.value) or "PENSTOCK_CONTENT_KEYS" in str(refused.value)
    assert TOKEN not in str(refused.value)
    assert OTHER not in str(refused.value)
    assert len(service.requests) == 1  # a redirect is not followed: the token would go elsewhere


async def endless(answer: Answer) -> None:
    await answer.head(content_type="application/json")
    while True:
        await answer.send(b" " * 16_384)


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        (stalls, NotThereYet, "does not answer in 0.3 s"),
        (cuts, NotThereYet, "does not answer"),
        (endless, StartUpError, "answers what is no key"),
    ],
)
async def test_a_service_without_an_end_of_its_answer_is_given_up(
    service: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    error: type[StartUpError],
    says: str,
) -> None:
    monkeypatch.setattr(key_service, "TIMEOUT_S", 0.3)
    service.scripted = lambda request: True
    service.script(script)
    with pytest.raises(StartUpError, match=says) as refused:
        await open_content_keys(settings_for(service.url, WRAPPED))
    assert type(refused.value) is error


async def test_keys_cross_no_network_in_clear() -> None:
    with pytest.raises(ConfigurationError, match="http:// sends keys in clear"):
        await open_content_keys(settings_for("http://192.0.2.1:8200", WRAPPED))
    with pytest.raises(ConfigurationError, match="PENSTOCK_KMS_URL: name the key"):
        await open_content_keys(Settings(content_keys=(WRAPPED,)))


def test_no_connection_takes_a_wrapped_key_for_a_key() -> None:
    with pytest.raises(ValueError, match="must be opened"):
        bus_settings(settings_for("http://127.0.0.1:1", WRAPPED), "test", "operator")


def wrap(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["streams", "wrap", *arguments])
    return result.exit_code, result.output


async def test_the_operator_wraps_keys_by_a_command(
    service: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KMS_URL", f"{service.url}/v1/transit/keys/penstock")
    monkeypatch.setenv("PENSTOCK_KMS_TOKEN", TOKEN)
    monkeypatch.delenv("PENSTOCK_CONTENT_KEYS", raising=False)
    code, word = await asyncio.to_thread(wrap)
    assert code == 0
    (new,) = (await open_content_keys(settings_for(service.url, word.strip()))).content_keys
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", word.strip())
    code, line = await asyncio.to_thread(wrap, "--present", "--json")
    again = json.loads(line)["content_key"]
    assert again != word.strip()
    assert (await open_content_keys(settings_for(service.url, again))).content_keys == (new,)
    service.other = _wraps_only(Transit())
    code, said = await asyncio.to_thread(wrap)
    assert (code, "answers 400" in said) == (2, True)
    monkeypatch.delenv("PENSTOCK_CONTENT_KEYS")
    code, said = await asyncio.to_thread(wrap, "--present")
    assert (code, "there is no present key" in said) == (2, True)
    monkeypatch.delenv("PENSTOCK_KMS_URL")
    code, said = await asyncio.to_thread(wrap)
    assert (code, "PENSTOCK_KMS_URL" in said) == (2, True)


def _wraps_only(transit: Transit) -> Any:
    """Return answers of a service that cannot open what it has wrapped."""

    def answers(request: Request) -> tuple[int, Any]:
        if "/decrypt/" in request.path:
            return 400, {"errors": ["invalid ciphertext"]}
        return transit(request)

    return answers


# A real OpenBao


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Bao]:
    async with bao(tmp_path) as made:
        yield made


async def test_openbao_opens_what_it_has_wrapped_also_after_its_key_was_rotated(
    server: Bao,
) -> None:
    settings = Settings(kms_url=server.key, kms_token=await server.token("encrypt", "decrypt"))
    word = await wrapped_key(settings)
    own = {"content_keys": (word,), "kms_token": await server.token("decrypt")}
    (key,) = (await open_content_keys(settings.model_copy(update=own))).content_keys
    assert word.startswith(f"kms:{master_id(key)}:vault:v1:")

    await server.call("POST", "transit/keys/penstock/rotate")
    assert (await open_content_keys(settings.model_copy(update=own))).content_keys == (key,)
    again = await wrapped_key(settings.model_copy(update={"content_keys": (word,)}), present=True)
    assert again.startswith(f"kms:{master_id(key)}:vault:v2:")

    # From now on, the earlier word in an old backup of the settings is worthless.
    await server.call("POST", "transit/keys/penstock/config", min_decryption_version=2)
    with pytest.raises(StartUpError, match="400 for decrypt"):
        await open_content_keys(settings.model_copy(update=own))
    own["content_keys"] = (again,)
    assert (await open_content_keys(settings.model_copy(update=own))).content_keys == (key,)


async def test_openbao_refuses_who_may_not_and_waits_while_it_is_sealed(server: Bao) -> None:
    settings = Settings(kms_url=server.key, kms_token=await server.token("encrypt", "decrypt"))
    settings = settings.model_copy(update={"content_keys": (await wrapped_key(settings),)})
    for token in (None, "s.unknown", await server.token("encrypt")):
        with pytest.raises(StartUpError, match="permission denied") as refused:
            await open_content_keys(settings.model_copy(update={"kms_token": token}))
        assert not isinstance(refused.value, NotThereYet)
    elsewhere = server.key.replace("penstock", "unknown")
    with pytest.raises(StartUpError, match="permission denied"):
        await open_content_keys(settings.model_copy(update={"kms_url": elsewhere}))
    await server.seal()
    with pytest.raises(NotThereYet, match="sealed"):
        await open_content_keys(settings)
    await server.unseal()
    assert len((await open_content_keys(settings)).content_keys) == 1
