"""Roles and the tenant are read from the configured claims."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.settings import AuthSettings
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
