"""Declares what each NATS user may do; all NATS configurations are made from this table.

Services share the account PENSTOCK, with one user for each service. Subscribers have a separate
account and reach only the subjects that are exported to it. Permissions within one account cannot
restrict them so: a user that may make a JetStream request chooses the subject of the answer, and
the server does not check this subject. A subscriber in the account PENSTOCK that might only fetch
its next event could have it delivered to `decide.<id>` or a bucket's subject.

`python -m penstock.bus.admin.permissions` prints deploy/nats/accounts.conf. With `--shards N`, the
users may also use the shards 1 to N - 1 of RAW and EVENTS.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.bus.admin.replay import TAKE_BACK
from penstock.bus.shards import BUCKET as SHARDS_BUCKET
from penstock.bus.shards import KEY as SHARDS_KEY
from penstock.bus.shards import group_of
from penstock.bus.streams import (
    ADVISORIES,
    AUDIT,
    COMMANDS,
    DEADLETTERS,
    DELIVERIES,
    EVENTS,
    JOURNAL,
    KEYS,
    MAX_SHARDS,
    RAW,
    SCHEDULES,
    events_of,
    raw_of,
)
from penstock.bus.subjects import (
    CATEGORIES,
    NORMALIZER,
    command,
    content_key,
    key_notice,
    key_request,
    large_event,
    replay_letter,
    replay_of,
    to_shard,
)

ACCOUNT: Final = "PENSTOCK"
SUBSCRIBERS: Final = "SUBSCRIBERS"
OPERATOR: Final = "operator"
SUBSCRIBER: Final = "subscriber"
# The value of the setting `domain` in subscribers' clients. Without a domain, a client sends its
# requests under plain $JS.API, and these requests do not leave the subscribers' account.
DOMAIN: Final = "penstock"

_API = "$JS.API"
# The subject of a direct get that reads the record of the shards and nothing else.
SHARDS_RECORD: Final = f"DIRECT.GET.KV_{SHARDS_BUCKET}.$KV.{SHARDS_BUCKET}.{SHARDS_KEY}"
# The subjects of subscribers' requests for the parts of large events. Edges answer these requests.
LARGE_EVENTS: Final = large_event("*", "*", "*")
# The subjects of subscribers' requests for the keys of runs. Edges answer them, as the grant says
# that the operator has given to the durable in the subject.
KEY_REQUESTS: Final = key_request("*", "*")
_OBJECTS = "OBJ_payloads"
# The streams from which services or subscribers take messages by durable consumers.
READ_BY_DURABLES: Final = (EVENTS, COMMANDS, SCHEDULES, DELIVERIES, ADVISORIES)
_NEXT, _INFO = "CONSUMER.MSG.NEXT", "CONSUMER.INFO"


@dataclass(frozen=True, slots=True)
class User:
    """A NATS user. With `responds`, the user may answer each request that it receives, once."""

    name: str
    purpose: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responds: bool = False

    @property
    def inbox(self) -> str:
        return inbox_prefix(self.name)


def inbox_prefix(user: str) -> str:
    return f"_INBOX_{user}"


def _reads(*names: str) -> list[str]:
    """Return the requests that read messages of streams, from the leader or by direct get."""
    return [f"{_API}.{call}.{name}" for name in names for call in ("STREAM.MSG.GET", "DIRECT.GET")]


def _buckets(*names: str) -> list[str]:
    return _reads(*(f"KV_{name}" for name in names))


def _keys(*keys: str) -> list[str]:
    """Return the subjects of messages that write keys, each key named as `<bucket>.<pattern>`."""
    return [f"$KV.{key}" for key in keys]


def _follows(stream: str) -> list[str]:
    calls = ("CREATE.{}", "MSG.NEXT.{}.*", "DELETE.{}.*")
    return [f"{_API}.CONSUMER.{call.format(stream)}" for call in calls]


def _takes(stream: str, *durables: str) -> list[str]:
    """Return the requests that make durable consumers and take their messages."""
    return [
        subject
        for durable in durables
        for subject in (
            f"{_API}.CONSUMER.DURABLE.CREATE.{stream}.{durable}",
            f"{_API}.{_INFO}.{stream}.{durable}",
            f"{_API}.{_NEXT}.{stream}.{durable}",
            f"$JS.ACK.{stream}.{durable}.>",
        )
    ]


# The subject of a request for the permissions of the user that asks; `penstock doctor` asks.
USER_INFO: Final = "$SYS.REQ.USER.INFO"
# The requests with which every service checks which streams exist and whether the streams are still
# the same.
_STREAM_CHECKS = [USER_INFO, f"{_API}.INFO", f"{_API}.STREAM.INFO.*"]
# The permissions to read and write objects, which hold payloads over 512 KiB. A writer that
# replaces an object purges the old object.
_READS_OBJECTS = [*_reads(_OBJECTS), f"{_API}.DIRECT.GET.{_OBJECTS}.>"]
_KEEPS_OBJECTS = [*_READS_OBJECTS, "$O.payloads.>", f"{_API}.STREAM.PURGE.{_OBJECTS}"]
# The subjects of the requests with which processes detect that another process has ended.
_ALIVE = ["alive.>"]
# The permissions to read the keys of runs, which every service checks at its start, and to be told
# that a key was destroyed.
_OPENS = [f"{_API}.STREAM.MSG.GET.{KEYS}"]
_KEY_NOTICES = [key_notice("*")]
# The permission to make the key of a run.
_SEALS = [content_key("*")]
# The permissions with which every service records how far the streams reach, so that the loss of a
# stream's end is detected.
_MARKS = [*_buckets("checkpoints"), *_keys("checkpoints.marks")]


# The kinds of commands that the services `connector` and `workflows` take.
CONNECTOR_COMMANDS: Final = ("start", "continue", "cancel")
WORKFLOW_COMMANDS: Final = ("start", "cancel", "continue", "called", "replay")

# The permissions to write stream tokens (`tokens.<id>`) and service tokens: every service with
# routes issues tokens, revokes tokens, and records their use.
_TOKENS = _keys("tokens.*", "tokens.service.*")


# The permissions of services that start runs: they read the budgets, and enter runs in accounts.
_ADMITS = [*_follows("KV_policies"), *_buckets("policies", "budgets"), *_keys("budgets.account.*")]


def _attempts(service: str) -> list[str]:
    return [*_buckets("claims"), *_keys(f"claims.attempts.{service}.>")]


def _service(
    name: str,
    purpose: str,
    *publish: Iterable[str],
    hears: Iterable[str] = (),
    responds: bool = False,
) -> User:
    own = [f"{inbox_prefix(name)}.>"]
    return User(
        name,
        purpose,
        tuple(
            dict.fromkeys(
                [
                    *(*_STREAM_CHECKS, *_ALIVE, *_MARKS, *_OPENS),
                    *(each for part in publish for each in part),
                ]
            )
        ),
        (*own, *_ALIVE, *_KEY_NOTICES, *hears),
        responds,
    )


USERS: Final = (
    User(
        OPERATOR,
        "makes and changes streams, replays dead letters: `penstock streams`, `deadletters`",
        (">",),
        (">",),
    ),
    _service(
        "connector",
        "the only one that writes source frames of agent servers",
        ["raw.*.upstream", "deadletter.connector.*", "command.connector.cancel.*"],
        ["control.*", "handover.leg", "turn.*"],
        _takes(COMMANDS, *(f"connector-{kind}" for kind in CONNECTOR_COMMANDS)),
        _follows("KV_leases"),
        _reads(COMMANDS, RAW, EVENTS),
        _buckets("claims", "sent", "leases", "sessions", "threads", "runs"),
        _buckets("pauses", "approvals", "aliases", "trees"),
        _keys("claims.>", "sent.*", "sessions.*", "threads.>"),
        _keys("leases.pod.*", "leases.watchdog"),
        _KEEPS_OBJECTS,
        _SEALS,
        hears=["control.*", "handover.leg", "turn.*"],
        responds=True,
    ),
    _service(
        "normalizer",
        "the only one that writes events; replays dead letters",
        [f"{category}.>" for category in CATEGORIES],
        # The normalizer processes the server's advisories, so it makes dead letters for all
        # services and subscribers.
        ["raw.*.normalizer", "deadletter.*.*"],
        # The normalizer has texts of runs checked, and stores the answers beside the frames.
        ["check.*", "raw.*.checks"],
        # The normalizer replays the dead letters that edges ask for. It publishes a command only
        # from a letter of the service that takes the command, so an edge cannot make one up.
        [f"command.connector.{kind}.*" for kind in CONNECTOR_COMMANDS],
        [f"command.workflows.{kind}.*" for kind in WORKFLOW_COMMANDS],
        [replay_of(service, "*") for service in sorted(TAKE_BACK)],
        [*_reads(DEADLETTERS), *_buckets("letters", "sent"), *_keys("letters.*.*")],
        # The normalizer repairs streams that have lost their end: see `state.continuity`.
        ["raw.*.penstock", "command.penstock.skipped.*"],
        [f"{_API}.STREAM.PURGE.{stream}" for stream in (RAW, EVENTS, COMMANDS)],
        _follows(RAW),
        _follows("KV_leases"),
        _takes(ADVISORIES, "normalizer-advisories"),
        _takes(EVENTS, "normalizer-costs"),
        _reads(RAW, EVENTS, COMMANDS, SCHEDULES),
        # The normalizer erases the content of runs, also in records of other services.
        [*_takes(COMMANDS, "normalizer-erase"), command(NORMALIZER, "erase", "*")],
        [
            f"{_API}.STREAM.MSG.DELETE.{stream}"
            for stream in (COMMANDS, EVENTS, RAW, JOURNAL, DEADLETTERS, _OBJECTS, KEYS)
        ],
        [*_reads(JOURNAL, AUDIT), *_buckets("approvals", "deliveries", "threads", "sessions")],
        _keys("approvals.*", "deliveries.*.*", "deliveries.run.*.*", "threads.*.*", "sessions.*"),
        _KEY_NOTICES,
        # The normalizer measures the lag of all readers, also of readers that have ended.
        [f"{_API}.CONSUMER.LIST.{stream}" for stream in READ_BY_DURABLES],
        _buckets("runs", "pauses", "leases", "aliases", "costs", "trees"),
        _keys("costs.*"),
        _keys("runs.*", "pauses.*", "checkpoints.>", "leases.normalizer.>"),
        _attempts("normalizer"),
        _KEEPS_OBJECTS,
        _SEALS,
        hears=[replay_letter("*")],
        responds=True,
    ),
    _service(
        "edge",
        "carries clients' requests, and sends them events",
        ["command.connector.start.*", "command.connector.cancel.*", "raw.*.edge"],
        ["command.workflows.start.*", "command.workflows.cancel.*"],
        ["decide.*", "link.*", "hold.*", "push.*", "turn.*", "deadletter.edge.*"],
        [command(NORMALIZER, "erase", "*")],
        # What `penstock doctor` reads, and the dead letters, whose replay the edge requests.
        [f"{_API}.CONSUMER.LIST.*", *_reads(DEADLETTERS), *_buckets("letters"), replay_letter("*")],
        # The edge follows which runs are open, since the users' limits count open runs.
        _follows("KV_runs"),
        _ADMITS,
        _reads(EVENTS, RAW, COMMANDS),
        _buckets("runs", "sessions", "aliases", "idempotency", "approvals", "pauses"),
        _buckets("leases", "tokens", "claims", "threads", "workflows", "trees"),
        _keys("runs.*", "sessions.*", "aliases.*", "idempotency.*", "leases.cancel.*"),
        [*_buckets("cursors"), *_keys("cursors.*.*")],
        # The durable of a subscriber says whether the edge may give it the key of a run.
        [f"{_API}.{_INFO}.{EVENTS}.*"],
        _buckets("costs"),
        _TOKENS,
        _KEEPS_OBJECTS,
        _SEALS,
        hears=["live.>", "frames.>", "turn.*", LARGE_EVENTS, KEY_REQUESTS],
        responds=True,
    ),
    _service(
        "console",
        "serves the files of the pages; as every service with routes, it takes tokens",
        _buckets("tokens"),
        _TOKENS,
    ),
    _service(
        "approvals",
        "takes decisions and continues runs; no other service may begin that",
        ["command.connector.continue.*", "raw.*.approvals", "deadletter.approvals.*"],
        ["command.workflows.continue.*", "command.workflows.cancel.*"],
        # No other service may write the audit.
        ["schedule.approvals.>", "audit.*"],
        _takes(EVENTS, "approvals", "approvals-budgets"),
        _takes(COMMANDS, "approvals-replay"),
        _takes(SCHEDULES, "approvals"),
        # A question to a person can be answered, but not rejected. So the approvals service cancels
        # the run when such an approval reaches its deadline.
        ["command.connector.cancel.*"],
        # The schedules of an approval are removed when the approval is decided.
        [f"{_API}.STREAM.{call}.{SCHEDULES}" for call in ("PURGE", "MSG.DELETE")],
        _follows("KV_policies"),
        _reads(EVENTS, RAW, AUDIT, SCHEDULES),
        _buckets("policies", "approvals", "pauses", "runs", "aliases", "tokens", "sent"),
        _keys("approvals.>", "policies.current", "aliases.*", "tokens.link.*"),
        [*_buckets("budgets"), *_keys("budgets.>", "policies.budgets")],
        _keys("policies.redactions", "policies.redactions.*"),
        _attempts("approvals"),
        _TOKENS,
        _KEEPS_OBJECTS,
        _SEALS,
        hears=["decide.*", "link.*", "hold.*", "$KV.approvals.*"],
        responds=True,
    ),
    _service(
        "automations",
        "matches events with rules; sends webhooks, starts runs and decides as rules ask",
        ["command.connector.start.*", "command.workflows.start.*", "command.workflows.called.*"],
        ["raw.*.automations", "deadletter.automations.*"],
        ["decide.*", "link.*", "delivery.*.*"],
        [
            "schedule.automations.>",
            "schedule.automations-schedules.*",
            "schedule.automations-events.*",
        ],
        _follows("KV_rules"),
        _follows("KV_workflows"),
        # The service counts the open runs of each user, as the edge does.
        _follows("KV_runs"),
        _ADMITS,
        _takes(EVENTS, "automations"),
        _takes(DELIVERIES, "automations"),
        _takes(COMMANDS, "automations-replay"),
        _takes(SCHEDULES, "automations", "automations-schedules", "automations-events"),
        # A retry that is due is published to DELIVERIES. The service deletes its message in
        # SCHEDULES, because SCHEDULES would otherwise keep the message forever.
        [f"{_API}.STREAM.MSG.DELETE.{SCHEDULES}"],
        _reads(EVENTS, RAW, SCHEDULES, COMMANDS),
        _buckets("rules", "deliveries", "endpoints", "runs", "sessions", "aliases", "leases"),
        _buckets("tokens", "workflows", "trees"),
        _keys("trees.runs.*"),
        _keys("rules.*", "deliveries.>", "endpoints.>", "runs.*", "aliases.*", "sessions.*"),
        _keys("leases.automations.*"),
        _attempts("automations"),
        # A delivery that is replayed over HTTP is marked as replayed among the dead letters, too.
        _keys("letters.automations.*"),
        _TOKENS,
        _KEEPS_OBJECTS,
        _SEALS,
        hears=["push.*", "check.*"],
        responds=True,
    ),
    _service(
        "workflows",
        "runs workflows: starts their steps' runs, and is the only one that writes journals",
        ["journal.>", "raw.*.workflows", "deadletter.workflows.*", "schedule.workflows.>"],
        # A step may start a run of an agent or of another workflow; a cancelled workflow cancels
        # the runs of its steps.
        [
            f"command.{target}.{kind}.*"
            for target in ("connector", "workflows")
            for kind in ("start", "cancel")
        ],
        # If a step calls a URL, the service automations carries out the call as a delivery.
        ["delivery._call.*"],
        _takes(COMMANDS, *(f"workflows-{kind}" for kind in WORKFLOW_COMMANDS)),
        # The consumer `workflows` gets events about the runs of steps. The consumer
        # `workflows-listen` gets the events that `listen` steps wait for.
        _takes(EVENTS, "workflows", "workflows-listen"),
        _takes(SCHEDULES, "workflows"),
        # The timers of a step are removed when the step ends. A timer that has become due is
        # removed after it was handled. The journal of a run is removed long after the run ended.
        [f"{_API}.STREAM.{call}.{SCHEDULES}" for call in ("PURGE", "MSG.DELETE")],
        [f"{_API}.STREAM.PURGE.{JOURNAL}"],
        # The service counts the open runs of each user, as the edge does.
        _follows("KV_runs"),
        _ADMITS,
        _reads(JOURNAL, EVENTS, RAW, SCHEDULES, COMMANDS),
        _buckets("runs", "sessions", "aliases", "idempotency", "leases", "tokens", "workflows"),
        _keys("runs.*", "aliases.*", "sessions.*", "idempotency.*"),
        _attempts("workflows"),
        # The service workflows reads the bucket of definitions by direct gets. No other service
        # writes to this bucket.
        _keys("workflows.v.*.>", "workflows.latest.*", "workflows.turn.*"),
        [*_buckets("trees"), *_keys("trees.runs.*", "trees.stopped.*")],
        [*_buckets("listens"), *_keys("listens.>", "leases.workflows.consumers")],
        _TOKENS,
        _KEEPS_OBJECTS,
        _SEALS,
    ),
)


def reader(name: str) -> User:
    """Return the user of a subscriber whose durable consumer has the same name."""
    return User(
        name,
        f"reads live events (`live.>`), and each event once by the durable consumer `{name}`",
        (
            f"$JS.{DOMAIN}.API.{_INFO}.{EVENTS}.{name}",
            f"$JS.{DOMAIN}.API.{_NEXT}.{EVENTS}.{name}",
            f"$JS.ACK.{EVENTS}.{name}.>",
            f"$JS.{DOMAIN}.API.{SHARDS_RECORD}",
            LARGE_EVENTS,
            key_request(name, "*"),
            USER_INFO,
        ),
        (f"{inbox_prefix(name)}.>", "live.>", *_KEY_NOTICES),
    )


READERS: Final = (reader(SUBSCRIBER),)
NAMES: Final = tuple(user.name for user in (*USERS, *READERS))


def password_variable(user: str) -> str:
    return f"PENSTOCK_NATS_PASSWORD_{user.upper()}"


def configuration(
    passwords: Mapping[str, str], shards: int = 1, subscribers: Iterable[User] = READERS
) -> str:
    """Return the block `accounts` of a NATS server's configuration. A password is written
    unchanged, so the caller must quote one that is no variable (`json.dumps`)."""
    operators = "\n".join(_user(with_shards(user, shards), passwords[user.name]) for user in USERS)
    readers = "\n".join(
        _user(with_shards(user, shards), passwords[user.name]) for user in subscribers
    )
    names = [events_of(shard) for shard in range(shards)]
    return _ACCOUNTS.format(
        operators=operators,
        readers=readers,
        exports="".join(map(_exports, names)),
        imports="".join(map(_imports, names)),
    )


def with_shards(user: User, shards: int) -> User:
    """Return the user with the same permissions in every shard as in shard 0."""
    more = [
        subject
        for shard in range(1, shards)
        for each in user.publish
        if (subject := _in_shard(each, shard)) != each
    ]
    return replace(user, publish=(*user.publish, *more))


def _in_shard(subject: str, shard: int) -> str:
    """Return the subject that a client uses in this shard where it uses `subject` in shard 0."""
    tokens = subject.split(".")
    if tokens[0] in ("raw", *CATEGORIES):
        return to_shard(shard, subject)
    names = {RAW: raw_of(shard), EVENTS: events_of(shard)}
    if tokens[0] == "$KV":
        names = {group_of(0): group_of(shard)}
    return ".".join(names.get(token, token) for token in tokens)


def _user(user: User, password: str) -> str:
    rules = [
        f"        publish: {{allow: [{_listed(user.publish)}]}}",
        f"        subscribe: {{allow: [{_listed(user.subscribe)}]}}",
    ]
    if user.responds:
        rules.append("        allow_responses: true")
    return "\n".join(
        [
            f"      # {user.purpose}",
            f"      {{user: {user.name}, password: {password}, permissions: {{",
            *rules,
            "      }}",
        ]
    )


def _listed(subjects: Iterable[str]) -> str:
    lines = "".join(f"\n          {json.dumps(subject)}" for subject in subjects)
    return f"{lines}\n        "


_ACCOUNTS = f"""\
accounts {{{{
  {ACCOUNT} {{{{
    jetstream: enabled
    users: [
{{operators}}
    ]
    # all that the account of the subscribers may reach
    exports: [
{{exports}}      {{{{service: "{_API}.{SHARDS_RECORD}"}}}}
      {{{{service: "{LARGE_EVENTS}"}}}}
      {{{{service: "{KEY_REQUESTS}"}}}}
      {{{{stream: "live.>"}}}}
      {{{{stream: "{_KEY_NOTICES[0]}"}}}}
    ]
  }}}}
  {SUBSCRIBERS} {{{{
    users: [
{{readers}}
    ]
    imports: [
{{imports}}      {{{{
        service: {{{{account: {ACCOUNT}, subject: "{_API}.{SHARDS_RECORD}"}}}}
        to: "$JS.{DOMAIN}.API.{SHARDS_RECORD}"
      }}}}
      # `share`: edges learn the user that asks, and give each a share of their time
      {{{{service: {{{{account: {ACCOUNT}, subject: "{LARGE_EVENTS}"}}}}, share: true}}}}
      {{{{service: {{{{account: {ACCOUNT}, subject: "{KEY_REQUESTS}"}}}}}}}}
      {{{{stream: {{{{account: {ACCOUNT}, subject: "live.>"}}}}}}}}
      {{{{stream: {{{{account: {ACCOUNT}, subject: "{_KEY_NOTICES[0]}"}}}}}}}}
    ]
  }}}}
}}}}
"""


def _exports(stream: str) -> str:
    return f"""\
      {{service: "{_API}.{_INFO}.{stream}.*"}}
      {{service: "{_API}.{_NEXT}.{stream}.*", response_type: stream}}
      {{service: "$JS.ACK.{stream}.>"}}
"""


def _imports(stream: str) -> str:
    return f"""\
      {{
        service: {{account: {ACCOUNT}, subject: "{_API}.{_INFO}.{stream}.*"}}
        to: "$JS.{DOMAIN}.API.{_INFO}.{stream}.*"
      }}
      {{
        service: {{account: {ACCOUNT}, subject: "{_API}.{_NEXT}.{stream}.*"}}
        to: "$JS.{DOMAIN}.API.{_NEXT}.{stream}.*"
      }}
      {{service: {{account: {ACCOUNT}, subject: "$JS.ACK.{stream}.>"}}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=1, choices=range(1, MAX_SHARDS + 1))
    shards = parser.parse_args().shards
    print("# Made by `make contract` from penstock/bus/admin/permissions.py: change it there.")
    print("# A variable of the server's environment holds each password; see README.md.")
    print(configuration({name: f"${password_variable(name)}" for name in NAMES}, shards), end="")


if __name__ == "__main__":
    main()
