"""Roles, with the scopes that they give, and the tenant are read from the configured claims."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.settings import AuthSettings, ConfigurationError, read_settings
from penstock.web.auth import Auth, AuthConfig
from penstock.web.auth.jwt import Secret, Verifier, roles_of
from penstock.web.problems import Problem
from support.fakes.issuer import SECRET, token

NESTED = {
    "roles": ["finance", "ops"],
    "realm_access": {"roles": ["approver"]},
    "resource_access": {"my.client": {"roles": ["lead"]}},
    "https://example.com/roles": ["named by a URL"],
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("roles", {"finance", "ops"}),
        ("realm_access.roles", {"approver"}),
        ("resource_access.my.client.roles", {"lead"}),
        ("https://example.com/roles", {"named by a URL"}),
        ("realm_access", set()),
        ("realm_access.none", set()),
        ("roles.deeper", set()),
        ("none.at.all", set()),
        ("", set()),
        ("..", set()),
    ],
)
def test_the_claim_may_be_nested_and_its_name_may_have_dots(path: str, expected: set[str]) -> None:
    assert roles_of(NESTED, path) == expected


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("finance", {"finance"}),
        ("two words", {"two words"}),
        ([], set()),
        (["finance", 7, None, "", ["ops"], {"ops": 1}], {"finance"}),
        (None, set()),
        (True, set()),
        (7, set()),
        ({"finance": True}, set()),
    ],
)
def test_only_texts_are_roles(claim: Any, expected: set[str]) -> None:
    assert roles_of({"roles": claim}, "roles") == expected


@pytest.mark.parametrize(
    ("path", "expected"), [("roles", {"finance"}), ("realm_access.roles", {"approver"})]
)
async def test_a_tokens_roles_are_those_of_the_configured_claim(
    path: str, expected: set[str]
) -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",), roles_claim=path)
    both: dict[str, Any] = {"roles": ["finance"], "realm_access": {"roles": ["approver"]}}
    claims = await verifier.verify(token(exp=time.time() + 60, **both))
    assert claims.roles == expected


def test_the_setting_may_not_be_empty() -> None:
    assert AuthSettings().roles_claim == "roles"
    with pytest.raises(ValidationError, match="roles_claim"):
        AuthSettings(roles_claim="")


GIVEN = json.dumps({"/staff/leads": "read decide", "ops": ["read", "administer"]})


async def scopes_of(claims: dict[str, Any], **settings: Any) -> frozenset[str]:
    """Return the scopes of a caller with these claims, where groups give scopes."""
    given = {"jwt_secret": SECRET, "roles_claim": "groups", "role_scopes": GIVEN} | settings
    auth = Auth(AuthConfig(**AuthSettings(**given).model_dump()))
    headers = [(b"authorization", f"Bearer {token(**claims)}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/v1/runs", "query_string": b""}
    return (await auth.admit(scope | {"client": ("127.0.0.1", 1), "headers": headers})).scopes


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"groups": ["/staff/leads", "others"]}, "decide read"),
        ({"groups": ["/staff/leads", "ops"]}, "administer decide read"),
        ({"groups": "ops"}, "administer read"),
        ({"groups": ["ops"], "scope": "openid profile"}, "administer read"),
        # A token may be meant for less than its user may do.
        ({"groups": ["ops"], "scope": "read openid"}, "read"),
        ({"scope": "start"}, "start"),
    ],
    ids=str,
)
async def test_a_role_gives_scopes_to_a_token_that_names_none(
    claims: dict[str, Any], expected: str
) -> None:
    assert sorted(await scopes_of(claims)) == expected.split()


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"groups": ["administer", "read decide", "start", "none", ""]},  # named like scopes
        {"groups": ["/staff", "leads", "/staff/leads/", "OPS", "ops ", "*"]},
        {"groups": ["ops,x", "ops\u0000", "\u043eps"]},
        {"groups": [["ops"], {"name": "ops"}, 7, None, True]},
        {"groups": {"ops": True}},
        {"groups": True},
        {"groups": 7},
        {"groups": None},
        {"roles": ["ops"]},  # another claim
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "x"}}},
    ],
    ids=json.dumps,
)
async def test_a_caller_without_a_role_that_gives_scopes_may_do_nothing(
    claims: dict[str, Any],
) -> None:
    assert await scopes_of(claims) == set()
    assert await scopes_of(claims, default_scopes="read") == {"read"}
    # Where no role gives scopes, everything is as before.
    assert await scopes_of(claims, role_scopes="") == {"start", "read", "raw", "decide"}


@pytest.mark.parametrize("claim", [7, {"read": True}, [7], True])
async def test_a_scope_claim_of_a_wrong_type_is_refused_whatever_the_roles(claim: Any) -> None:
    with pytest.raises(Problem) as refused:
        await scopes_of({"groups": ["ops"], "scope": claim})
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("leads=read", "must be JSON like"),
        ("[]", "must be JSON like"),
        ("{}", "must be JSON like"),
        ('{"leads": "write"}', "leads: name one or more of act-as"),
        ('{"leads": "none"}', "leads: name one or more of act-as"),
        ('{"leads": []}', "leads: name one or more of act-as"),
        ('{"leads": 7}', "must be a list"),
        ('{"leads": {"read": true}}', "must be a list"),
    ],
)
def test_scopes_of_roles_that_are_none_are_refused_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_ROLE_SCOPES", text)
    with pytest.raises(ConfigurationError, match=f"PENSTOCK_AUTH_ROLE_SCOPES: .*{reason}"):
        read_settings(AuthSettings)


@pytest.mark.parametrize(
    ("path", "expected"),
    [(None, ""), ("org", "acme"), ("company.id", "umbrella"), ("none.at.all", "")],
)
async def test_the_tenant_is_that_of_the_configured_claim(path: str | None, expected: str) -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",), tenant_claim=path)
    both: dict[str, Any] = {"org": "acme", "company": {"id": "umbrella"}}
    claims = await verifier.verify(token(exp=time.time() + 60, **both))
    assert claims.tenant == expected


@pytest.mark.parametrize("claim", [7, [], ["acme"], {"id": "acme"}, "", "a" * 129, "a\n", True])
async def test_a_token_with_a_tenant_that_is_no_text_is_refused(claim: Any) -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",), tenant_claim="org")
    with pytest.raises(Problem, match="tenant") as refused:
        await verifier.verify(token(exp=time.time() + 60, org=claim))
    assert refused.value.status == 401
