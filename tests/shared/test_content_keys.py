"""The keys that seal content come from a variable or a file; an error shows none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.settings import ConfigurationError, Settings, read_settings

FIRST, SECOND, THIRD = "a" * 32, "b" * 32, "c" * 32


def test_keys_come_from_the_variable_and_from_files_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{SECOND},{THIRD}\n")
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", f"none,{FIRST} file:{file}")
    settings = read_settings(Settings)
    assert settings.content_keys == ("none", FIRST, SECOND, THIRD)
    assert FIRST not in repr(settings)
    # A service reads its own settings from those that were read for all.
    assert Settings(**settings.model_dump()).content_keys == settings.content_keys
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", f"{FIRST},none")
    assert read_settings(Settings).content_keys == (FIRST, "none")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("too-short", "at least 32 bytes"),
        (f"{FIRST},none,{SECOND}", "at least 32 bytes"),
        ("none", "needs a key beside it"),
        ("none,none", "needs a key beside it"),
        ("kms:vault:v1:AAAAAAAAAAAAAAAAAAAAAAAA", "`kms:<id>:<ciphertext>`"),
        ("file:/nowhere/keys", "cannot read the keys in /nowhere/keys"),
    ],
)
def test_what_is_no_key_is_refused_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", value)
    with pytest.raises(ConfigurationError, match=f"PENSTOCK_CONTENT_KEYS: .*{reason}") as refused:
        read_settings(Settings)
    assert FIRST not in str(refused.value)
    assert "too-short" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://bao:8200", "https://bao/v1/transit/decrypt/k", "bao/v1/a/keys/b"]
)
def test_the_key_service_is_named_by_the_url_of_its_key(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("PENSTOCK_KMS_URL", "https://bao:8200/v1/team/transit/keys/penstock")
    assert read_settings(Settings).kms_url is not None
    monkeypatch.setenv("PENSTOCK_KMS_URL", "")
    assert read_settings(Settings).kms_url is None
    monkeypatch.setenv("PENSTOCK_KMS_URL", url)
    with pytest.raises(ConfigurationError, match="PENSTOCK_KMS_URL: must be the URL of a key"):
        read_settings(Settings)
