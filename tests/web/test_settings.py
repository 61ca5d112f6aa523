"""PENSTOCK_AUTH_*: which values are accepted, and which ones are refused at the start."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from penstock.settings import AuthSettings, Settings
from penstock.web.auth import AuthConfig

SECRET = "x" * 32
URL = "https://issuer.example/jwks"


def test_nothing_set_asks_nobody() -> None:
    config = AuthConfig(**AuthSettings().model_dump())
    assert (config.is_configured, config.requires_credentials) == (False, False)
    assert config == AuthConfig()


def test_the_settings_and_the_configuration_have_the_same_fields() -> None:
    fields = {field.name for field in dataclasses.fields(AuthConfig)}
    assert fields == set(AuthSettings.model_fields)


def test_the_environment_is_read_and_handed_on_between_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", SECRET)
    monkeypatch.setenv("PENSTOCK_AUTH_ALGORITHMS", "HS256, HS512")
    monkeypatch.setenv("PENSTOCK_AUTH_CORS_ORIGINS", "https://a.example,http://b.example:3000")
    monkeypatch.setenv("PENSTOCK_AUTH_ISSUER", "")
    own = Settings(**Settings().model_dump()).auth
    assert own.jwt_secret == SECRET
    assert own.algorithms == ("HS256", "HS512")
    assert own.cors_origins == ("https://a.example", "http://b.example:3000")
    assert own.issuer is None


@pytest.mark.parametrize("word", ["true", "TRUE", "1", "yes", "on"])
def test_the_bypass_has_its_contracts_name(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", SECRET)
    monkeypatch.setenv("ALLOW_UNAUTHENTICATED_SSE", word)
    settings = Settings().auth
    assert settings.allow_unauthenticated_sse
    assert not AuthConfig(**settings.model_dump()).requires_credentials


@pytest.mark.parametrize("word", ["false", "0", "", "no", "maybe", "off"])
def test_anything_else_keeps_asking(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", SECRET)
    monkeypatch.setenv("ALLOW_UNAUTHENTICATED_SSE", word)
    assert AuthConfig(**Settings().auth.model_dump()).requires_credentials


def test_the_algorithms_follow_from_the_kind_of_key() -> None:
    by_secret = AuthConfig(**AuthSettings(jwt_secret=SECRET).model_dump())
    by_url = AuthConfig(**AuthSettings(jwks_url=URL).model_dump())
    assert (by_secret.pinned, by_url.pinned) == (("HS256",), ("RS256", "ES256"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"jwt_secret": SECRET, "jwks_url": URL}, "set one of them"),
        ({"jwt_secret": "short"}, "at least 32 bytes"),
        ({"csrf_secret": "short"}, "at least 32 bytes"),
        ({"jwks_url": "issuer.example"}, "URL"),
        ({"jwks_url": "file:///etc/passwd"}, "URL"),
        ({"jwt_secret": SECRET, "algorithms": "RS256"}, "RS256 is none of"),
        ({"jwt_secret": SECRET, "algorithms": "HS256,none"}, "none is none of"),
        ({"jwks_url": URL, "algorithms": "HS256"}, "HS256 is none of"),
        ({"jwks_url": URL, "algorithms": "RS256,HS256"}, "HS256 is none of"),
        ({"cors_origins": "*"}, "no origin"),
        ({"cors_origins": "https://*.example.com"}, "no origin"),
        ({"cors_origins": "app.example.com"}, "no origin"),
        ({"cors_origins": "https://app.example.com/"}, "no origin"),
        ({"cors_origins": "null"}, "no origin"),
        ({"cookie_samesite": "none", "cookie_secure": False}, "needs secure cookies"),
        ({"leeway_s": -1}, "greater than"),
    ],
)
def test_what_would_not_be_safe_is_refused_at_the_start(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        AuthSettings(**settings)  # type: ignore[arg-type]  # as the environment gives it: text


def test_no_secret_is_shown_by_repr_nor_by_an_error() -> None:
    for secret in ("kept-private-" * 3, "kept-private"):
        try:
            shown = repr(Settings(auth=AuthSettings(jwt_secret=secret, csrf_secret=secret)))
            shown += repr(AuthConfig(jwt_secret=secret, csrf_secret=secret))
        except ValidationError as error:
            shown = str(error) + repr(error)
        assert "kept-private" not in shown
