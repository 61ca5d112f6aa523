"""Judge the facts about a deployment by a table of checks. Each check says what to do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from penstock.bus.streams import kind_and_shard
from penstock.doctor.facts import AnswerFact, Facts, PartitionFact, Wanted
from penstock.settings.keep import KINDS, shown_age

Verdict = Literal["ok", "wrong", "not_checked"]

# A check reports a problem when its value reaches one of these limits.

# Stored bytes, as a part of the greatest number of bytes that may be stored.
FULL: Final = 0.8
# The number of messages that a durable consumer has not delivered yet.
WAITING: Final = 10_000
# The number of source frames after the checkpoint, as in the alert for the normalizer's lag.
BEHIND: Final = 5_000
# Seconds between the clocks of this machine and of NATS. At PENSTOCK_CLOCK_LIMIT_S, services stop.
CLOCK_S: Final = 5.0
# The share of a budget, as in the alert for budgets.
NEARLY_USED: Final = 0.9
# Secrets of CSRF tokens can only differ between so many services.
SEVERAL: Final = 2
SHOWN: Final = 5  # the greatest number of streams in one sentence, and of accounts
# What a process says whose secret no other process has.
OWN_SECRET: Final = "its own"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check for one part of the deployment."""

    check: str
    verdict: Verdict
    text: str
    to_do: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    `wrong` returns a text for each problem; None if the facts for the check are missing.
    """

    name: str
    fine: str  # what is true if nothing is wrong, as a text for people
    to_do: str
    wrong: Callable[[Facts], Sequence[str] | None]
    shows: Callable[[Facts], str] | None = None  # what a check that is ok also tells


def _version(facts: Facts) -> list[str]:
    return [facts.refusal] if facts.refusal else []


def _storage(facts: Facts) -> list[str]:
    return [*_storage_of(facts)]


def _storage_of(facts: Facts) -> Iterator[str]:
    if 0 < facts.max_stored_bytes <= facts.stored_bytes / FULL:
        share = facts.stored_bytes / facts.max_stored_bytes
        yield f"the account uses {share:.0%} of the {facts.max_stored_bytes} bytes it may store"
    for stream in facts.streams:
        if 0 < stream.max_bytes <= stream.bytes / FULL:
            share = stream.bytes / stream.max_bytes
            yield f"{stream.name} uses {share:.0%} of its {stream.max_bytes} bytes"


def _missing(facts: Facts) -> list[str]:
    return [f"there is no stream {each.name}" for each in facts.streams if not each.exists]


def _schema(facts: Facts) -> list[str]:
    return [
        f"{each.name} has schema {each.schema}, and this version of penstock has {facts.schema}"
        for each in facts.streams
        if each.exists and each.schema != facts.schema
    ]


def _settings(facts: Facts) -> list[str]:
    return [f"{each.name}: {text}" for each in facts.streams for text in each.differs]


def _kept(facts: Facts) -> str:
    """Return for how long each kind is kept, as the streams have it."""
    ages_s = {each.name: each.max_age_s for each in facts.streams if each.exists}
    kinds = [
        f"{name}={shown_age(ages_s[kind.stream])}"
        for name, kind in KINDS.items()
        if kind.stream in ages_s
    ]
    return ", ".join([*kinds, *facts.early])


def _content(facts: Facts) -> list[str]:
    return [facts.content] if facts.content else []


def _waiting(facts: Facts) -> list[str]:
    return [
        f"{each.name} of {each.stream} has {each.waiting} messages to deliver"
        for each in facts.consumers
        if each.waiting >= WAITING
    ]


def _unread(facts: Facts) -> list[str]:
    return [
        f"{each.name} of {each.stream} has {each.waiting} messages, and no process asks for them"
        for each in facts.consumers
        if each.waiting and not each.polled
    ]


def _behind(facts: Facts) -> list[str]:
    return [
        f"the newest frame of partition {each.number} of {each.stream} is {each.behind} frames "
        "ahead of the events"
        for each in facts.partitions
        if each.behind >= BEHIND
    ]


def _unheld(facts: Facts) -> list[str]:
    unheld: dict[str, list[PartitionFact]] = {}
    for each in facts.partitions:
        if each.behind and not each.held:
            unheld.setdefault(each.stream, []).append(each)
    return [
        f"{len(found)} partitions of {stream} have source frames without events, and no normalizer "
        "works on them"
        for stream, found in unheld.items()
    ]


def _installed(facts: Facts) -> list[str] | None:
    """Return how the streams differ from the chart's values.

    The check `values` reports invalid values.
    """
    if facts.values is None:
        return None
    return [] if facts.wanted is None else [*_differ(facts, facts.wanted)]


def _differ(facts: Facts, wanted: Wanted) -> Iterator[str]:
    if facts.shards != wanted.shards:
        yield f"streams.shards is {wanted.shards}, and the installation has {facts.shards}"
    streams = [each for each in facts.streams if each.exists]
    yield from _unlike(
        "replicas",
        wanted.replicas,
        {each.name: each.replicas for each in streams},
        "takes copies of the messages away",
    )
    for name, kind in KINDS.items():
        of_kind = {
            each.name: each.max_age_s or inf
            for each in streams
            if kind_and_shard(each.name)[0] == kind.stream
        }
        loss = "deletes all older messages"
        yield from _unlike(f"keep.{name}", wanted.ages_s[name] or inf, of_kind, loss, _age)


def _age(age_s: float) -> str:
    return shown_age(0.0 if age_s == inf else age_s)


def _count(number: float) -> str:
    return f"{number:.12g}"


def _unlike(
    value: str,
    wanted: float,
    found: Mapping[str, float],
    loss: str,
    shown: Callable[[float], str] = _count,
) -> Iterator[str]:
    """Yield one text for all streams that differ from the value in the same way.

    `found` maps the names of streams to what they have (inf: no limit), and `loss` says what a
    migration of a stream with more than `wanted` does.
    """
    names: dict[float, list[str]] = {}
    for name, number in found.items():
        if number != wanted:
            names.setdefault(number, []).append(name)
    for number, differing in names.items():
        more = len(differing) - SHOWN
        listed = ", ".join(differing[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        verb = "has" if len(differing) == 1 else "have"
        careful = f" (careful: a migration to the value {loss})" if wanted < number else ""
        yield f"streams.{value} is {shown(wanted)}, and {listed} {verb} {shown(number)}{careful}"


def _letters(facts: Facts) -> list[str]:
    count = facts.dead_letters
    if count == 1:
        return ["there is a dead letter"]
    return [f"there are {count} dead letters"] if count else []


def _budgets(facts: Facts) -> list[str]:
    """Return the budgets of several runs that are nearly used up. A run that comes to its own limit
    is no fault of the deployment."""
    if facts.budgets_mistake:
        return [f"no run starts, since the budgets have a mistake: {facts.budgets_mistake}"]
    full = [each for each in facts.accounts if not each.per_run and each.share > NEARLY_USED]
    return [
        f"{each.share:.0%} of the budget {each.budget} of {each.subject or '(none)'} is taken"
        for each in sorted(full, key=lambda each: -each.share)[:SHOWN]
    ]


def _prices(facts: Facts) -> list[str]:
    unknown = Counter[str]()
    for each in facts.accounts:
        unknown[each.budget] += each.calls_without_cost
    return [
        f"{count} calls of models do not count for the cost of the budget {budget}"
        for budget, count in unknown.items()
        if count
    ]


def _clock(facts: Facts) -> list[str]:
    if abs(facts.clock_ahead_s) < CLOCK_S:
        return []
    side = "ahead of" if facts.clock_ahead_s > 0 else "behind"
    return [f"the clock of this machine is {abs(facts.clock_ahead_s):.1f} s {side} that of NATS"]


def _answers(answers: Sequence[AnswerFact] | None) -> list[str] | None:
    if answers is None:
        return None
    return [f"{each.name}: {'; '.join(each.reasons)}" for each in answers if not each.ok]


def _notices(facts: Facts) -> list[str] | None:
    if facts.probes is None:
        return None
    return [f"{each.name}: {text}" for each in facts.probes for text in each.notices]


def _csrf_secrets(facts: Facts) -> list[str] | None:
    told = [each for each in facts.probes or () if each.csrf_secret is not None]
    if len(told) < SEVERAL:
        return None
    if len({each.csrf_secret for each in told}) == 1 and told[0].csrf_secret != OWN_SECRET:
        return []
    listed = ", ".join(f"{each.name} has {each.csrf_secret}" for each in told)
    return [f"a signed-in browser cannot use all services, because their secrets differ: {listed}"]


CHECKS: Final = (
    Check(
        "nats",
        "NATS answers, is new enough, and has JetStream",
        "start nats-server 2.12 or later with JetStream, and name it with --nats",
        _version,
    ),
    Check(
        "storage",
        "account and streams use less than 80 % of the bytes they may",
        "raise the limit (max_file_store, the stream's max_bytes), or shorten the ages of "
        "PENSTOCK_KEEP and run `penstock streams migrate` (careful: that deletes all older "
        "messages)",
        _storage,
    ),
    Check(
        "streams",
        "every stream and bucket of every shard exists",
        "if NATS has lost its data, restore a backup (docs/operate/backup.md); a new installation "
        "needs `penstock streams make`",
        _missing,
    ),
    Check(
        "schema",
        "every stream has the schema of this version",
        "run `penstock streams make` of the newest version that is deployed, and use that version "
        "of `penstock`",
        _schema,
    ),
    Check(
        "settings",
        "retention and replicas of every stream are those of the environment",
        "set the variables as the services have them, or run `penstock streams migrate` (careful: "
        "to a shorter age, it deletes all older messages)",
        _settings,
        _kept,
    ),
    Check(
        "content",
        "the newest content is not sealed, or is sealed with a key of PENSTOCK_CONTENT_KEYS",
        "give every service and this command the same keys, and the same key service if it opens "
        "them (docs/privacy.md)",
        _content,
    ),
    Check(
        "lag",
        "no durable consumer has 10,000 messages to deliver",
        "start more processes of the service, or find out what keeps them busy",
        _waiting,
    ),
    Check(
        "readers",
        "a process takes the messages of every durable consumer that has some",
        "start the service, or look into its log; delete a subscriber that is not used any more",
        _unread,
    ),
    Check(
        "normalizer",
        "every partition of RAW is less than 5,000 frames ahead of its events",
        "start more normalizers (16 for each shard have work), or look into their logs",
        _behind,
    ),
    Check(
        "partitions",
        "a normalizer works on every partition of RAW that has frames",
        "start a normalizer, or look into its log; `/readyz` says why it takes no work",
        _unheld,
    ),
    Check(
        "dead_letters",
        "there are no dead letters",
        "look at them with `penstock deadletters list`, mend the cause, and replay or drop them "
        "(docs/dead-letters.md)",
        _letters,
    ),
    Check(
        "budgets",
        "no more than 90 % of any budget of several runs are taken",
        "look with `penstock budget accounts --share 0.9`; raise the limit or correct the mistake "
        "with a higher version of the document, or wait for the next window",
        _budgets,
    ),
    Check(
        "prices",
        "every call of a model counts for the budgets that limit its cost",
        "find the model with `penstock costs --by model`, and give it a price in the currency of "
        "the budget (PENSTOCK_PRICES)",
        _prices,
    ),
    Check(
        "clock",
        "the clock of this machine is less than 5 s from that of NATS",
        "synchronize the clocks with NTP, on the machines of NATS and of the services",
        _clock,
    ),
    Check(
        "files",
        "the passwords' folder has a password for every user that others cannot read",
        "write the missing passwords, and take the rights of others away (chmod o-rwx)",
        lambda facts: _answers(facts.files),
    ),
    Check(
        "users",
        "every service's user can log in and use JetStream",
        "give the NATS server the users of deploy/nats/accounts.conf, and the same passwords",
        lambda facts: _answers(facts.users),
    ),
    Check(
        "permissions",
        "every service's user has the permissions of this version",
        "take the accounts of deploy/nats/accounts.conf of this version into NATS's configuration "
        "(for several shards: `python -m penstock.bus.admin.permissions --shards N`) and reload it",
        lambda facts: _answers(facts.permissions),
    ),
    Check(
        "auth",
        "the keys with which tokens are checked can be had and used",
        "correct PENSTOCK_AUTH_JWKS_URL or PENSTOCK_OIDC_ISSUER, and PENSTOCK_AUTH_ALGORITHMS "
        "(auth.jwksUrl and auth.oidc.issuer of the values), or mend the issuer; without keys, no "
        "token is accepted",
        lambda facts: _answers(facts.auth),
    ),
    Check(
        "agents",
        "every agent's server answers, as `penstock agents check` asks it",
        "start the server, or correct the agent's entry in the configuration",
        lambda facts: _answers(facts.agents),
    ),
    Check(
        "probes",
        "every service that was named is ready",
        "do what the reason says; without an answer, look whether the service runs",
        lambda facts: _answers(facts.probes),
    ),
    Check(
        "notices",
        "no service that was named has a notice for the operator",
        "do what the notice says",
        _notices,
    ),
    Check(
        "csrf",
        "the services that were named sign CSRF tokens with one secret",
        "set the same PENSTOCK_AUTH_CSRF_SECRET (or PENSTOCK_AUTH_JWT_SECRET) for all services, "
        "and start them again",
        _csrf_secrets,
    ),
    Check(
        "values",
        "the chart's schema accepts the values",
        "correct the value; deploy/helm/penstock/values.yaml describes each",
        lambda facts: facts.values,
    ),
    Check(
        "installation",
        "shards, replicas and retention of the streams are those of the values",
        "name every file that Helm got with `-f`, in the same order, or correct the values; only "
        "if the streams are wrong, set PENSTOCK_REPLICAS and PENSTOCK_KEEP as the values say and "
        "run `penstock streams migrate` (shards: `penstock streams migrate --shards N`)",
        _installed,
    ),
)
# Maps the name of a check to what the person must set or name. If this is missing, the check cannot
# be made.
NEEDED: Final = {
    "files": "set PENSTOCK_NATS_PASSWORDS",
    "users": "set PENSTOCK_NATS_PASSWORDS",
    "permissions": "set PENSTOCK_NATS_PASSWORDS",
    "auth": "set PENSTOCK_AUTH_* as the services have it, or name values with auth.jwksUrl",
    "agents": "name the configuration with --config",
    "probes": "name the services' probes with --probe",
    "notices": "name the services' probes with --probe",
    "csrf": "name the probes of two or more services that ask callers for a token, with --probe",
    "values": "name the values with --values, and the chart with --chart",
    "installation": "name the values with --values, and the chart with --chart",
}
_WITHOUT_NATS: Final = ("nats", "files", "auth", "agents", "probes", "notices", "csrf", "values")


def run_checks(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, in the order of the table.

    Each check has at least one finding.
    """
    found = []
    for check in CHECKS:
        wrong = check.wrong(facts)
        if facts.refusal and check.name not in _WITHOUT_NATS:
            found.append(
                Finding(check.name, "not_checked", f"whether {check.fine}", "mend `nats` first")
            )
        elif wrong is None:
            found.append(
                Finding(check.name, "not_checked", f"whether {check.fine}", NEEDED[check.name])
            )
        elif not wrong:
            shown = f": {check.shows(facts)}" if check.shows is not None else ""
            found.append(Finding(check.name, "ok", f"{check.fine}{shown}"))
        else:
            found += [Finding(check.name, "wrong", text, check.to_do) for text in wrong]
    return found
