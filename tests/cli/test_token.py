"""`penstock token` makes a token that the services accept, and its errors name the remedy."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import httpx
import jwt
import pytest
from typer.testing import CliRunner

from penstock.settings import (
    AuthSettings,
    Config,
    ConfigurationError,
    Settings,
    read_settings,
)
from penstock.web.auth.jwt import roles_of
from penstock_cli.main import app
from penstock_cli.terminal.api import advice
from penstock_client.errors import refusal
from penstock_connector.settings import ConnectorSettings
from support.real.forked import finished
from support.real.up import FORKED, Up

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", SECRET)
    for name in ("PENSTOCK_AUTH_JWKS_URL", "ALLOW_UNAUTHENTICATED_SSE", "PENSTOCK_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_the_token_alone_is_on_stdout_and_stderr_says_that_it_is_for_development() -> None:
    made = CliRunner().invoke(
        app, ["token", "--user", "ann", "--scope", "read,decide", "--lifetime", "2h"]
    )
    claims = jwt.decode(made.stdout.strip(), SECRET, ["HS256"])
    assert (claims["sub"], claims["scope"]) == ("ann", "read decide")
    assert claims["exp"] - claims["iat"] == 7200
    assert "for development only" in made.stderr


def test_a_token_has_the_issuer_audience_and_algorithm_that_the_services_want(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("ISSUER", "https://me"), ("AUDIENCE", "bridge"), ("ALGORITHMS", "HS512")):
        monkeypatch.setenv(f"PENSTOCK_AUTH_{name}", value)
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", SECRET * 2)
    token = CliRunner().invoke(app, ["token"]).stdout.strip()
    claims = jwt.decode(token, SECRET * 2, ["HS512"], audience="bridge", issuer="https://me")
    assert "scope" not in claims  # so that the services' default applies


@pytest.mark.parametrize("claim", ["roles", "realm_access.roles"])
def test_a_token_has_its_roles_where_the_services_look_for_them(
    monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_ROLES_CLAIM", claim)
    roles = ("--role", "finance", "--role", "ops")
    token = CliRunner().invoke(app, ["token", *roles]).stdout.strip()
    assert roles_of(jwt.decode(token, SECRET, ["HS256"]), claim) == {"finance", "ops"}


def test_a_token_has_its_tenant_where_the_services_look_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = CliRunner().invoke(app, ["token", "--tenant", "acme"])
    assert refused.exit_code == 2
    assert "PENSTOCK_AUTH_TENANT_CLAIM is not set" in refused.stderr
    monkeypatch.setenv("PENSTOCK_AUTH_TENANT_CLAIM", "org.id")
    token = CliRunner().invoke(app, ["token", "--tenant", "acme"]).stdout.strip()
    assert jwt.decode(token, SECRET, ["HS256"])["org"] == {"id": "acme"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--lifetime", "soon"], "'soon' is no lifetime: write it like 15m"),
        (["--lifetime", "400d"], "lives from 1s to 30d"),
        (["--scope", "root"], "root: none of act-as"),
    ],
)
def test_an_invalid_token_is_an_error(arguments: list[str], told: str) -> None:
    made = CliRunner().invoke(app, ["token", *arguments], env={"COLUMNS": "200"})
    assert made.exit_code == 2
    assert told in made.stderr
    assert made.stdout == ""


def test_without_a_secret_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_AUTH_JWT_SECRET")
    made = CliRunner().invoke(app, ["token"])
    assert made.exit_code == 2
    assert "set PENSTOCK_AUTH_JWT_SECRET" in made.stderr
    monkeypatch.setenv("PENSTOCK_AUTH_JWKS_URL", "https://issuer.example/keys")
    assert "of that issuer alone" in CliRunner().invoke(app, ["token"]).stderr
    monkeypatch.delenv("PENSTOCK_AUTH_JWKS_URL")
    monkeypatch.setenv("PENSTOCK_OIDC_ISSUER", "https://issuer.example")
    monkeypatch.setenv("PENSTOCK_OIDC_CLIENT_ID", "penstock")
    assert "of that issuer alone" in CliRunner().invoke(app, ["token"]).stderr


def test_no_token_is_made_for_the_user_that_no_service_accepts() -> None:
    refused = CliRunner().invoke(app, ["token", "--user", "anonymous"])
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert "no service accepts this user in a token" in refused.stderr


def test_a_secret_that_is_too_short_is_told_without_words_of_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", "short")
    refused = CliRunner().invoke(app, ["token"])
    assert refused.exit_code == 2
    assert "PENSTOCK_AUTH_JWT_SECRET: must have at least 32 bytes" in refused.stderr


def test_a_penstock_with_a_secret_takes_it_and_the_terminal_says_what_is_missing(
    make_up: Callable[..., Up],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = tmp_path_factory.mktemp("agents") / "penstock.yaml"
    config.write_text("agents: [{id: assistant, protocol: agno, url: 'http://127.0.0.1:1'}]")
    up = make_up("--config", str(config))
    up.start()
    command = [*FORKED, "run", "hi", "--url", up.url, "--agent"]

    def said(agent: str, **environment: str) -> str:
        done = finished([*command, agent], environment)
        assert done.returncode == 2
        return done.stderr

    refused = said("assistant")
    assert "(401). Set PENSTOCK_TOKEN to a token" in refused
    assert "`penstock token` makes one for development" in refused

    token = CliRunner().invoke(app, ["token"]).stdout.strip()
    assert said("asistant", PENSTOCK_TOKEN=token) == (
        'penstock: there is no agent asistant: did you mean "assistant"? '
        "(agents: assistant) (404)\n"
    )


def test_an_unknown_agent_is_told_with_those_that_there_are() -> None:
    agents = [{"id": f"a{n}", "protocol": "agno", "url": "http://a"} for n in range(22)]
    assert Config().no_agent("x") == "there is no agent x (agents: none is configured)"
    assert Config(agents=agents[:2]).no_agent("painter") == (
        "there is no agent painter (agents: a0, a1)"
    )
    told = Config(agents=agents).no_agent("A1")
    assert told.startswith('there is no agent A1: did you mean "a1"? (agents: a0, a1, ')
    assert told.endswith("a19 and 2 more)")


def test_only_a_401_names_the_variable_of_the_token() -> None:
    def told(status: int) -> str:
        return advice(refusal(httpx.Response(status, json={"detail": "no"})))

    assert "PENSTOCK_TOKEN" in told(401)
    assert "PENSTOCK_TOKEN" not in told(403)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PENSTOCK_AUTH_JWT_SECRET", "short"),
        ("PENSTOCK_AUTH_LEEWAY_S", "-1"),
        ("PENSTOCK_AUTH_HOSTS", "http://a"),
        ("PENSTOCK_PORT", "high"),
        ("PENSTOCK_MAX_LEGS", "0"),
    ],
)
def test_a_setting_that_is_wrong_is_told_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as told:
        read_settings(ConnectorSettings)
    assert f"  {variable}: " in str(told.value)


def test_settings_of_a_group_that_are_given_with_the_whole_have_their_own_names_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH", '{"leeway_s": -1}')
    with pytest.raises(ConfigurationError, match="  PENSTOCK_AUTH_LEEWAY_S: "):
        read_settings(Settings)
    monkeypatch.setenv("PENSTOCK_AUTH", "no json")
    with pytest.raises(ConfigurationError, match='field "auth"'):
        read_settings(Settings)


def test_up_names_the_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", "short")
    told = CliRunner().invoke(app, ["up"])
    assert told.exit_code == 2
    assert told.stderr.startswith("penstock: PENSTOCK_AUTH_JWT_SECRET: ")


def test_every_setting_of_authentication_has_a_name_that_its_error_says() -> None:
    aliases = {field.validation_alias for field in AuthSettings.model_fields.values()} - {None}
    oidc = {f"PENSTOCK_OIDC_{each}" for each in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET", "SCOPES")}
    assert aliases == {"ALLOW_UNAUTHENTICATED_SSE", "PENSTOCK_PUBLIC_URL", *oidc}
    for name in ("PENSTOCK_OIDC_ISSUER", "PENSTOCK_PUBLIC_URL"):
        told = finished(["-m", "penstock_cli", "token"], {name: "no address"})
        assert told.returncode == 2
        assert f"{name}: " in told.stderr


def test_it_tells_its_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"penstock {version('penstock-cli')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands_and_options(shell: str) -> None:
    def complete(line: str) -> str:
        words = {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        program = "from penstock_cli.main import app; app(prog_name='penstock')"
        words["_PENSTOCK_COMPLETE"] = f"complete_{shell}"
        return finished(["-c", program], words).stdout

    assert "deadletters" in complete("penstock dead")
    assert "--agent" in complete("penstock run --ag")
