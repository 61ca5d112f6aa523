"""Lists of approvals: urgent ones come first; pages are complete and disjoint during decisions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
import pytest
import uuid_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bus import Bus, Entry
from penstock.bus.records.approvals import ApprovalRecord, Deciders
from penstock.bus.state.bucket_index import Change, StillReading
from penstock.web.auth import Identity
from penstock.web.auth.grants import EVERYBODY, ServiceGrant
from penstock.web.problems import Problem
from penstock_approvals.inbox import listing
from penstock_approvals.inbox.listing import ApprovalList, ListPosition
from penstock_approvals.inbox.visibility import Viewer, viewer_of
from penstock_approvals.store.records import ApprovalRecords
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer

OLDEST = {  # the fields of a record that the first release wrote
    "run_id": "r",
    "agent": "a",
    "session_id": "s",
    "leg": 1,
    "digest": "d",
    "items": [],
    "updated_at": "2026-01-01T00:00:00.000Z",
}


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """Connect to the server of this module: the services of other modules would read its records,
    which are tens of thousands."""
    async with connected(nats_server.url) as bus:
        yield bus


@pytest.fixture
async def approvals(bus: Bus) -> ApprovalList:
    """Make a list that has read the records of the earlier tests."""
    made = ApprovalList(bus, ApprovalRecords(bus))

    async def has_read() -> bool:
        try:
            await made.index.caught_up()
        except StillReading:
            return False
        return True

    await eventually(has_read, 60, "the list has read the records")
    return made


def owner() -> str:
    return f"user-{uuid_utils.uuid7()}"


def at(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"


def document(user_id: str, approval_id: str, requested: int, **fields: Any) -> bytes:
    record = {**OLDEST, "approval_id": approval_id, "user_id": user_id}
    return orjson.dumps({**record, "requested_at": at(requested), **fields})


async def put(bus: Bus, user_id: str, requested: int, approval_id: str = "", **fields: Any) -> str:
    approval_id = approval_id or str(uuid_utils.uuid4())
    value = document(user_id, approval_id, requested, **fields)
    await bus.bucket("approvals").put(approval_id, value)
    return approval_id


def viewer(owners: Collection[str] | None) -> Viewer:
    """Return somebody who sees the approvals of these users."""
    names = (None,) if owners is None else tuple(owners)
    return Viewer(names, lambda record: owners is None or record.user_id in owners)


async def pages(
    approvals: ApprovalList, owners: Collection[str] | None, limit: int, **wanted: str
) -> list[list[str]]:
    """Read page after page; return the approval ids of each page."""
    found: list[list[str]] = []
    after: ListPosition | None = None
    while True:
        page = await approvals.page(viewer(owners), wanted, after, limit=limit)
        found.append([record.approval_id for record in page.approvals])
        if page.next is None:
            return found
        after = ListPosition.parse(page.next)


def flat(pages: list[list[str]]) -> list[str]:
    return [approval_id for page in pages for approval_id in page]


async def test_pending_approvals_with_a_deadline_come_first_and_all_others_the_newest_first(
    bus: Bus, approvals: ApprovalList
) -> None:
    user = owner()
    late = await put(bus, user, 1, expires_at=at(900))
    soon = await put(bus, user, 2, expires_at=at(300))
    decided = await put(bus, user, 3, status="decided", expires_at=at(200))
    old, new = await put(bus, user, 4), await put(bus, user, 5)
    everything = [soon, late, new, old, decided]
    assert await pages(approvals, {user}, 10) == [everything]
    for limit in (1, 2, 3):
        assert flat(await pages(approvals, {user}, limit)) == everything
    assert await pages(approvals, {user}, 10, status="pending") == [[soon, late, new, old]]
    assert await pages(approvals, {user}, 10, status="decided") == [[decided]]


class Memory:
    """An index over values in memory, whose clock is the number of writes."""

    def __init__(self, list_: ApprovalList) -> None:
        self._rows = list_.rows
        self._values: dict[str, Entry] = {}
        self._sequence = 0

    def put(self, key: str, value: bytes) -> None:
        self._sequence += 1
        stored_at = f"2026-01-01T00:00:00.{self._sequence:09}Z"
        self._values[key] = Entry(key, value, self._sequence)
        self._rows.put([Change(key, value, self._sequence, stored_at)])

    async def caught_up(self) -> None:
        """Return at once: the rows are always up to date."""

    async def values(self, keys: Sequence[str]) -> dict[str, Entry]:
        return {key: self._values[key] for key in keys if key in self._values}


class NoBus:
    """Replace the bus: `ApprovalRecords.of` reads small records from the entry, without a bus."""

    class Continuity:
        def on_loss(self, _: object) -> None:
            """Do nothing: there are no losses."""

    class JetStream:
        def on_reconnect(self, _: object) -> None:
            """Do nothing: there are no reconnects."""

    continuity = Continuity()
    jetstream = JetStream()

    def bucket(self, _: str) -> None:
        """Return None: there are no buckets."""


_DEADLINES = st.one_of(st.none(), st.integers(0, 50))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 50), _DEADLINES),
        st.tuples(st.sampled_from(["decided", "withdrawn", "expired"]), st.integers(0, 20)),
    ),
    max_size=4,
)


@given(
    given_=st.lists(st.tuples(st.integers(0, 50), _DEADLINES, st.booleans()), max_size=12),
    between=st.lists(_STEPS, max_size=12),
    limit=st.integers(1, 5),
    rows_at_once=st.sampled_from([1, 3, 1000]),
)
@settings(max_examples=60, deadline=None)
def test_each_approval_is_on_one_page_whatever_happens_between_two_pages(
    given_: list[tuple[int, int | None, bool]],
    between: list[list[tuple[Any, ...]]],
    limit: int,
    rows_at_once: int,
) -> None:
    bus: Any = NoBus()
    approvals = ApprovalList(bus, ApprovalRecords(bus))
    memory: Any = Memory(approvals)
    approvals.index = memory
    made: list[dict[str, Any]] = []

    def write(record: dict[str, Any]) -> None:
        fields = {name: value for name, value in record.items() if value is not None}
        memory.put(record["approval_id"], document("u", **fields))

    def request(requested: int, deadline: int | None, status: str = "pending") -> None:
        expires_at = None if deadline is None else at(deadline)
        made.append(
            {
                "approval_id": f"id-{len(made)}",
                "requested": requested,
                "status": status,
                "expires_at": expires_at,
            }
        )
        write(made[-1])

    async def read() -> list[str]:
        steps = iter(between)
        found: list[str] = []
        after: ListPosition | None = None
        while True:
            page = await approvals.page(viewer({"u"}), {}, after, limit=limit)
            found += [record.approval_id for record in page.approvals]
            if page.next is None:
                return found
            after = ListPosition.parse(page.next)
            for kind, *rest in next(steps, ()):
                if kind == "request":
                    request(*rest)
                elif made:
                    record = made[rest[0] % len(made)]
                    record["status"] = kind
                    write(record)

    for requested, deadline, decided in given_:
        request(requested, deadline, "decided" if decided else "pending")
    existing = [record["approval_id"] for record in made]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listing, "SLICE", rows_at_once)
        found = asyncio.run(read())
    assert len(found) == len(set(found))
    assert set(existing) <= set(found)


async def test_pages_stay_complete_while_many_people_decide(
    bus: Bus, approvals: ApprovalList
) -> None:
    user = owner()
    made: dict[str, dict[str, Any]] = {}
    for number in range(80):
        fields: dict[str, Any] = {
            "requested": number,
            **({"expires_at": at(number % 7)} if number % 2 else {}),
        }
        made[await put(bus, user, **fields)] = fields
    stop = asyncio.Event()

    async def decides() -> None:
        while not stop.is_set():
            approval_id = random.choice(list(made))
            fields = made[approval_id] | {"approval_id": approval_id, "status": "decided"}
            await put(bus, user, **fields)
            await put(bus, random.choice([user, owner()]), 50, expires_at=at(3))

    deciding = [asyncio.create_task(decides()) for _ in range(3)]
    try:
        for limit in (1, 9, 40):
            found = flat(await pages(approvals, {user}, limit))
            assert len(found) == len(set(found))
            assert set(made) <= set(found)
    finally:
        stop.set()
        await asyncio.gather(*deciding)


@pytest.mark.parametrize("rows_at_once", [3, 20_000])
async def test_filters_find_all_that_fits_however_rare(
    bus: Bus, approvals: ApprovalList, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SLICE", rows_at_once)
    user, other = owner(), owner()
    rare: list[str] = []
    for number in range(20):
        fits = number in (0, 7, 19)
        fields = {"agent": "b", "session_id": user, "run_id": user} if fits else {}
        approval_id = await put(
            bus, user, number, status="expired" if fits else "decided", **fields
        )
        rare += [approval_id] * fits
        await put(bus, other, number, **fields)
    rare.reverse()
    for name, value in (
        ("agent", "b"),
        ("session_id", user),
        ("run_id", user),
        ("status", "expired"),
    ):
        assert await pages(approvals, {user}, 2, **{name: value}) == [rare[:2], rare[2:]]
    assert await pages(approvals, {user}, 9, run_id=user, status="decided") == [[]]
    of_all = await pages(approvals, None, 1000, run_id=user, status="expired")
    assert of_all == [rare]
    assert len(flat(await pages(approvals, {user, other}, 7))) == 40


@pytest.mark.parametrize("rows_at_once", [3, 20_000])
async def test_tools_rules_users_and_times_are_filters_that_show_nobody_more(
    bus: Bus, approvals: ApprovalList, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SLICE", rows_at_once)
    ann, bob, team, rule = owner(), owner(), owner(), owner()

    def asking(*tools: str, rules: Sequence[str] = ()) -> dict[str, Any]:
        rulings = [{"item_id": "i", "rule_id": each, "outcome": "ask"} for each in rules]
        items = [{"item_id": "i", "kind": "confirmation", "tool": tool} for tool in tools]
        return {"items": items, "rulings": rulings, "deciders": [deciders(roles=[team])]}

    both = asking("pay", "read", rules=[rule, "default"])
    made = [
        await put(bus, user, number, **fields)
        for number, (user, fields) in enumerate(
            [
                (ann, both | {"expires_at": at(99)}),
                (bob, both | {"status": "decided"}),
                *[(ann, asking("write", rules=["default"]))] * 8,
                (bob, asking("pay", rules=["other"])),
                (bob, both | {"items": [], "status": "decided", "expires_at": at(50)}),
            ]
        )
    ]

    async def found(who: Identity, limit: int = 2, **wanted: Any) -> list[int]:
        numbers, after = [], None
        while True:
            page = await approvals.page(viewer_of(who), wanted, after, limit=limit)
            numbers += [made.index(each.approval_id) for each in page.approvals]
            if page.next is None:
                return numbers
            after = ListPosition.parse(page.next)

    def time(second: int) -> datetime:
        return datetime.fromisoformat(at(second))

    of_team, root = caller(owner(), team), caller("root", scopes=["administer"])
    for who in (of_team, root):
        assert await found(who, rule=rule) == [0, 11, 1]
        assert await found(who, rule=rule, tool="read") == [0, 1]
        assert await found(who, rule=rule, tool="write") == []
        assert await found(who, user_id=bob) == [11, 10, 1]
        assert await found(who, user_id=bob, tool="pay", status="decided") == [1]
        assert await found(who, user_id=bob, since=time(1), until=time(11)) == [10, 1]
        assert await found(who, user_id=ann, until=time(4)) == [0, 3, 2]
        assert await found(who, user_id=ann, since=time(8)) == [9, 8]
        assert await found(who, user_id=ann, since=time(3), until=time(3)) == []
    assert await found(of_team, tool="pay") == [0, 10, 1]
    assert await found(caller(ann), tool="pay") == [0]
    assert await found(caller(ann), user_id=bob) == await found(caller(bob), user_id=ann) == []
    assert await found(caller(bob), rule=rule, agent="a") == [11, 1]


async def test_a_cursor_of_another_user_shows_nothing_of_that_user(
    bus: Bus, approvals: ApprovalList
) -> None:
    alice, bob = owner(), owner()
    for number in range(4):
        await put(bus, alice, number, expires_at=at(number))
    mine = [await put(bus, bob, number, expires_at=at(9)) for number in range(2)]
    page = await approvals.page(viewer({alice}), {}, None, limit=2)
    assert page.next is not None
    stolen = await approvals.page(viewer({bob}), {}, ListPosition.parse(page.next), limit=10)
    assert [record.approval_id for record in stolen.approvals] == mine[::-1]


async def test_broken_records_are_left_out_of_the_list(
    bus: Bus, approvals: ApprovalList, caplog: pytest.LogCaptureFixture
) -> None:
    user = owner()
    made = [await put(bus, user, number) for number in range(5)]
    await bus.bucket("approvals").put(made[1], b"{")
    await bus.bucket("approvals").put(made[2], b'{"user_id": 1}')
    # This record has the fields that the index needs, and lacks other fields.
    broken = {"user_id": user, "requested_at": at(3)}
    await bus.bucket("approvals").put(made[3], orjson.dumps(broken))
    # The object of this record does not exist.
    await bus.bucket("approvals").put(made[0], b'{"penstock_object":"approval.gone"}')
    assert await pages(approvals, {user}, 2) == [[made[4]]]
    for approval_id in made[:4]:
        assert approval_id in caplog.text


async def test_a_deleted_approval_and_an_entry_of_the_outbox_are_not_listed(
    bus: Bus, approvals: ApprovalList
) -> None:
    user = owner()
    made = [await put(bus, user, number) for number in range(3)]
    await bus.bucket("approvals").put(f"outbox.{made[0]}", b"1")
    await approvals.index.caught_up()
    await bus.bucket("approvals").delete(made[1])
    await bus.api("STREAM.PURGE.KV_approvals", {"filter": f"$KV.approvals.{made[2]}"})
    assert await pages(approvals, {user}, 2) == [[made[0]]]


@pytest.mark.parametrize(
    "text", ["", "x", "W10", "WzEsMl0", "bnVsbA", "WzEsMiwzLDQsNV0", "é", "WzEsMSwxLDEsInMiXQ"]
)
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="after: must be `next`"):
        ListPosition.parse(text)


@given(
    place=st.builds(
        ListPosition,
        st.integers(0, 2**62),
        st.booleans(),
        st.integers(-(2**62), 2**62),
        st.integers(-(2**62), 2**62),
        st.integers(-1, 2**56),
    )
)
def test_a_cursor_is_read_as_it_was_written(place: ListPosition) -> None:
    assert ListPosition.parse(place.cursor()) == place


def deciders(**fields: Any) -> dict[str, Any]:
    return Deciders(**fields).model_dump()


def caller(name: str, *roles: str, scopes: Sequence[str] = ("read", "decide")) -> Identity:
    return Identity(name, frozenset(scopes), "bearer", roles=frozenset(roles))


def vote(by: str, **fields: Any) -> dict[str, Any]:
    return {"by": by, "decider": {"name": by}, "at": at(1), "digest": "d", "items": [], **fields}


async def listed(
    approvals: ApprovalList, who: Identity, limit: int = 2, *, waits: bool = False
) -> list[str]:
    """Return the ids of all approvals that the caller is shown, read page by page."""
    found: list[str] = []
    after: ListPosition | None = None
    while True:
        page = await approvals.page(viewer_of(who, waits=waits), {}, after, limit=limit)
        found += [record.approval_id for record in page.approvals]
        if page.next is None:
            return found
        after = ListPosition.parse(page.next)


async def test_a_caller_finds_what_its_name_and_its_roles_may_see_and_each_once(
    bus: Bus, approvals: ApprovalList
) -> None:
    ann, team, chief = owner(), owner(), owner()
    own = await put(bus, ann, 1)
    by_team = await put(bus, owner(), 2, deciders=[deciders(roles=[team])])
    by_both = await put(bus, ann, 3, deciders=[deciders(roles=[team, chief], users=[ann])])
    narrow = [deciders(roles=[team]), deciders(roles=[chief])]
    by_all = await put(bus, owner(), 4, deciders=narrow, expires_at=at(9))
    escalation = {"at": at(1), "to": deciders(roles=[chief])}
    later: dict[str, Any] = {"deciders": [deciders(roles=[owner()])], "escalations": [escalation]}
    escalated = await put(bus, owner(), 5, **later, escalated=1)
    made = {own, by_team, by_both, by_all, escalated, await put(bus, owner(), 6, **later)}
    found = {
        "ann": await listed(approvals, caller(ann)),
        "team": await listed(approvals, caller(owner(), team)),
        "chief": await listed(approvals, caller(owner(), chief)),
        "both": await listed(approvals, caller(ann, team, chief)),
        "no scope": await listed(approvals, caller(owner(), team, scopes=["read"])),
    }
    # Other tests may have left approvals that everybody may see.
    seen = {who: [each for each in ids if each in made] for who, ids in found.items()}
    assert seen == {
        "ann": [by_both, own],
        "team": [by_both, by_team],
        "chief": [escalated, by_both],
        "both": [by_all, escalated, by_both, by_team, own],
        "no scope": [],
    }
    every = await listed(approvals, caller("root", scopes=["administer"]), 1000)
    assert [*seen["both"]] == [each for each in every if each in seen["both"]]


async def test_a_caller_finds_what_waits_for_it(bus: Bus, approvals: ApprovalList) -> None:
    ann, bob, team = owner(), owner(), owner()
    four_eyes = [deciders(roles=[team], excluded=["requester"])]
    own = await put(bus, ann, 1)
    await put(bus, ann, 2, status="decided")
    of_ann = await put(bus, ann, 3, deciders=four_eyes, expires_at=at(99))
    of_bob = await put(bus, bob, 4, deciders=four_eyes, need=2, votes=[vote(owner())])
    voted = await put(bus, owner(), 5, deciders=four_eyes, need=2, votes=[vote(ann)])
    void = [vote(ann, void=True), vote(bob)]
    again = await put(bus, owner(), 6, deciders=four_eyes, need=2, votes=void)
    assert await listed(approvals, caller(ann, team), waits=True) == [again, of_bob, own]
    assert await listed(approvals, caller(bob, team), waits=True) == [of_ann, voted]
    assert await listed(approvals, caller(ann), waits=True) == [own]
    assert await listed(approvals, caller(owner()), waits=True) == []


WHO = st.sampled_from(["u1", "u2", "u3"])
ROLES = st.lists(st.sampled_from(["r1", "r2"]), max_size=2, unique=True)
GROUPS = st.builds(
    deciders,
    roles=ROLES,
    users=st.lists(st.sampled_from(["u1", "u2", "requester"]), max_size=2),
    excluded=st.lists(st.sampled_from(["u3", "requester"]), max_size=1),
)
RECORDS = st.fixed_dictionaries(
    {
        "deciders": st.lists(GROUPS, max_size=2),
        "escalations": st.lists(
            st.builds(lambda to: {"at": at(1), "to": to}, st.none() | GROUPS), max_size=1
        ),
        "escalated": st.integers(0, 1),
        "votes": st.lists(st.builds(vote, WHO, void=st.booleans()), max_size=2),
        "status": st.sampled_from(["pending", "pending", "decided"]),
    }
)


CREDENTIALS = st.sampled_from(["own", "all", (), ("u1", "u2"), (EVERYBODY,)])


@settings(max_examples=100)
@given(st.lists(st.tuples(WHO, RECORDS), max_size=8), WHO, ROLES, st.booleans(), CREDENTIALS)
def test_the_index_finds_what_a_look_at_every_record_finds(
    given_: list[tuple[str, dict[str, Any]]],
    name: str,
    roles: list[str],
    waits: bool,
    credential: str | tuple[str, ...],
) -> None:
    bus: Any = NoBus()
    list_ = ApprovalList(bus, ApprovalRecords(bus))
    memory: Any = Memory(list_)
    list_.index = memory
    who = caller(name, *roles, scopes=["read", "administer" if credential == "all" else "decide"])
    if isinstance(credential, tuple):
        who = replace(who, kind="service", service=ServiceGrant("t", on_behalf_of=credential))
    for number, (user, fields) in enumerate(given_):
        memory.put(f"k{number}", document(user, f"k{number}", number, **fields))
    seeker_ = viewer_of(who, waits=waits)
    records = [
        ApprovalRecord.model_validate_json(document(user, f"k{number}", number, **fields))
        for number, (user, fields) in enumerate(given_)
    ]
    expected = {record.approval_id for record in records if seeker_.shows(record)}
    found = asyncio.run(listed(list_, who, waits=waits))
    assert sorted(found) == sorted(expected)


def test_the_rows_count_pending_approvals_and_know_the_oldest() -> None:
    rows = listing.ApprovalRows()
    assert rows.pending() == (0, None)
    for number, (status, at) in enumerate(
        [("pending", "10"), ("pending", "05"), ("decided", "01"), ("expired", "02")], 1
    ):
        record = {
            **OLDEST,
            **{"approval_id": str(number), "user_id": "u", "status": status},
            "requested_at": f"1970-01-01T00:00:{at}.000Z",
        }
        stamp = "1970-01-01T00:01:00Z"
        rows.put([Change(str(number), orjson.dumps(record), number, stamp)])
    assert rows.pending() == (2, 5000)
