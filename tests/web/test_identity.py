"""The caller's identity decides the scopes, the ownership, acting for others and token limits."""

from __future__ import annotations

import pytest

from penstock.web.auth.grants import DEFAULT, SCOPES, Grant, Permission, covers
from penstock.web.auth.identity import (
    ANONYMOUS,
    NOBODY,
    Identity,
    acting_user,
    check_owner,
    check_run,
    require,
)
from penstock.web.problems import Problem

ALICE = Identity("alice", DEFAULT, "bearer")
ACTS = Identity("service", frozenset({"start", "act-as"}), "bearer")
ADMIN = Identity("root", frozenset({"administer"}), "bearer")


def status_of(refused: pytest.ExceptionInfo[Problem]) -> int:
    return refused.value.status


@pytest.mark.parametrize("permission", sorted(SCOPES))
def test_each_scope_permits_itself_and_no_other(permission: Permission) -> None:
    holder = Identity("u", frozenset({permission}), "bearer")
    assert {name for name in SCOPES if holder.has_scope(name)} == {permission}
    require(holder, permission)
    with pytest.raises(Problem, match=f"scope {permission}") as refused:
        require(Identity("u", SCOPES - {permission}, "bearer"), permission)
    assert status_of(refused) == 403


def test_a_run_of_ones_own_is_there() -> None:
    check_owner(ALICE, "alice", "run r1")


@pytest.mark.parametrize("owner", ["bob", "Alice", "alice ", "", "anonymous"])
def test_another_users_run_is_not_there(owner: str) -> None:
    with pytest.raises(Problem) as refused:
        check_owner(ALICE, owner, "run r1")
    assert (status_of(refused), refused.value.detail) == (404, "there is no run r1")


@pytest.mark.parametrize("identity", [ACTS, ADMIN, ANONYMOUS])
def test_a_caller_with_act_as_or_administer_sees_all_runs(identity: Identity) -> None:
    check_owner(identity, "bob", "run r1")


def test_nobody_sees_and_may_nothing() -> None:
    assert not NOBODY.scopes
    with pytest.raises(Problem):
        check_owner(NOBODY, "alice", "run r1")


def test_a_caller_without_a_scope_reads_why_nobody_or_the_token_lacks_it() -> None:
    with pytest.raises(Problem, match="while callers are not authenticated"):
        require(ANONYMOUS, "administer")
    with pytest.raises(Problem, match="which the token does not have"):
        require(ALICE, "administer")


def test_a_request_that_names_nobody_is_the_callers_own() -> None:
    assert acting_user(ALICE, None) == "alice"
    assert acting_user(ANONYMOUS, None) == "anonymous"
    assert acting_user(ACTS, None) == "service"


def test_a_request_may_name_the_caller() -> None:
    assert acting_user(ALICE, "alice") == "alice"


@pytest.mark.parametrize("identity", [ALICE, ADMIN])
@pytest.mark.parametrize("wanted", ["bob", "ALICE", ""])
def test_naming_another_user_needs_the_scope(identity: Identity, wanted: str) -> None:
    with pytest.raises(Problem, match="act-as") as refused:
        acting_user(identity, wanted)
    assert status_of(refused) == 403


@pytest.mark.parametrize("identity", [ACTS, ANONYMOUS])
def test_with_the_scope_the_run_is_that_users(identity: Identity) -> None:
    assert acting_user(identity, "bob") == "bob"


# a stream token's limits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("*.*", "llm.stream", True),
        ("*.*", "*.*", True),
        ("llm.*", "llm.stream", True),
        ("llm.*", "llm.*", True),
        ("llm.*", "*.*", False),
        ("llm.*", "*.stream", False),
        ("llm.*", "approval.requested", False),
        ("llm.stream", "llm.*", False),
        ("*.failed", "lifecycle.failed", True),
        ("*.failed", "lifecycle.*", False),
        ("llm.*", "llm", False),
        ("llm.*", "llm.stream.r1", False),
        ("llm.*", "llm.>", True),
        ("llm.*", "", False),
    ],
)
def test_a_pattern_covers_what_matches_nothing_beyond_it(
    pattern: str, subject: str, expected: bool
) -> None:
    assert covers(pattern, subject) is expected


def refuses(grant: Grant, run_id: str = "r1", session_id: str = "s1") -> int:
    with pytest.raises(Problem) as refused:
        grant.check_run(run_id, session_id)
    return status_of(refused)


def test_a_run_within_the_limits_is_followed() -> None:
    for grant in (
        Grant("t", subjects=("*.*",)),
        Grant("t", runs=("r0", "r1")),
        Grant("t", sessions=("s1",)),
        Grant("t", runs=("r1",), sessions=("s1",), subjects=("*.*",)),
    ):
        grant.check_run("r1", "s1")


def test_all_limits_hold_together() -> None:
    assert refuses(Grant("t", runs=("r2",))) == 404
    assert refuses(Grant("t", sessions=("s2",))) == 404
    assert refuses(Grant("t", runs=("r1",), sessions=("s2",))) == 404
    assert refuses(Grant("t", runs=("r2",), sessions=("s1",))) == 404


def test_a_whole_run_needs_all_subjects() -> None:
    assert refuses(Grant("t", subjects=("llm.*",), runs=("r1",))) == 403


def test_a_run_is_there_for_its_owner_within_the_limits_of_the_token() -> None:
    limited = Identity("alice", frozenset({"read"}), "stream_token", grant=Grant("t", runs=("r1",)))
    check_run(ALICE, "alice", "r2", "s1")
    check_run(limited, "alice", "r1", "s1")
    for identity, owner, run_id in ((ALICE, "bob", "r1"), (limited, "bob", "r1")):
        with pytest.raises(Problem) as refused:
            check_run(identity, owner, run_id, "s1")
        assert (status_of(refused), refused.value.detail) == (404, "there is no run r1")
    with pytest.raises(Problem) as refused:
        check_run(limited, "alice", "r2", "s1")
    assert (status_of(refused), refused.value.detail) == (404, "there is no run r2")


def test_a_session_needs_its_limit_and_no_limit_of_runs() -> None:
    Grant("t", sessions=("s1",)).check_session("s1")
    Grant("t", subjects=("*.*",)).check_session("s1")
    for grant in (Grant("t", sessions=("s2",)), Grant("t", runs=("r1",), sessions=("s1",))):
        with pytest.raises(Problem) as refused:
            grant.check_session("s1")
        assert status_of(refused) == 404


def test_subjects_of_many_runs_need_to_be_covered_each() -> None:
    grant = Grant("t", subjects=("llm.*", "approval.requested"))
    grant.check_subjects(["llm.stream", "approval.requested"])
    for asked in (["llm.stream", "lifecycle.*"], ["*.*"], []):
        with pytest.raises(Problem) as refused:
            grant.check_subjects(asked)
        assert status_of(refused) == 403


@pytest.mark.parametrize("grant", [Grant("t", runs=("r1",)), Grant("t", sessions=("s1",))])
def test_a_token_of_some_runs_follows_no_others_by_their_subject(grant: Grant) -> None:
    with pytest.raises(Problem) as refused:
        grant.check_subjects(["llm.*"])
    assert status_of(refused) == 403
