"""Configures structured logs, whose lines have the run and its trace, and defines the metrics."""

from __future__ import annotations

import logging
import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import version
from typing import Final, Literal

from prometheus_client import Counter, Gauge, Histogram, Metric

from penstock.log_lines import JsonFormatter, TextFormatter

LogFormat = Literal["text", "json"]

# The greatest number of agents with a value of their own for the label `agent`. Each value adds
# about 20 time series to each process.
MAX_AGENT_LABELS: Final = 200
MAX_MODEL_LABELS: Final = 100  # the same for models, whose names come from agent servers
OTHER: Final = "other"  # the label's value for all names that have no value of their own

_agent_labels: set[str] = set()
_model_labels: set[str] = set()


class MeasuredGauge(Gauge):
    """A gauge without labels that has no value until the process sets the gauge.

    A plain gauge is 0 until it is set. So after a restart, and in every service that never sets the
    gauge, a plain gauge would say that there are no dead letters or pending approvals.
    """

    _is_set = False

    def set(self, value: float) -> None:
        super().set(value)
        self._is_set = True

    def collect(self) -> Iterable[Metric]:
        """Return the metric, without a sample before the first `set`."""
        for metric in super().collect():
            if not self._is_set:
                metric.samples = []
            yield metric


BUILD = Gauge("penstock_build_info", "1, with the versions as labels", ["version", "python"])
RUNS = Counter("penstock_runs_total", "Runs that have ended", ["agent", "outcome"])
COST = Counter(
    "penstock_cost",
    "What calls of models and tools (label `model`) cost, in units of the currency, as far as "
    "their prices are known",
    ["agent", "model", "currency"],
)
COST_UNKNOWN = Counter(
    "penstock_cost_unknown_total",
    "Events `llm.usage` without a cost, because no price of the model is known",
    ["model"],
)
# The name and the buckets are those of OpenTelemetry's GenAI conventions.
TOKEN_USAGE = Histogram(
    "gen_ai_client_token_usage",
    "Tokens of one model call, by kind: input or output",
    ["gen_ai_token_type", "gen_ai_response_model"],
    buckets=tuple(4.0**exponent for exponent in range(14)),
)
RUN_SECONDS = Histogram(
    "penstock_run_seconds",
    "Seconds from the acceptance of a run to its end, pauses included",
    ["agent"],
    buckets=(0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200),
)
RUN_START_SECONDS = Histogram(
    "penstock_run_start_seconds",
    "Seconds from the acceptance of a run to its event lifecycle.started",
    ["agent"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300),
)
FIRST_BYTES_SECONDS = Histogram(
    "penstock_first_bytes_seconds",
    "Seconds from a request to an agent server to the first bytes of its answer",
    ["agent"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
HTTP_REQUESTS = Counter(
    "penstock_http_requests_total",
    "Requests that got their answer, or the beginning of a stream",
    ["method", "route", "code"],
)
HTTP_SECONDS = Histogram(
    "penstock_http_request_seconds",
    "Seconds from a request to the end of its answer, without streams",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
LIMITED = Counter(
    "penstock_limited_total", "Requests refused (429) by a limit for each user", ["limit"]
)
READER_WAITING = Gauge(
    "penstock_reader_waiting",
    "Messages of a stream that no process has taken yet, by durable consumer; normalizers measure "
    "all of them",
    ["stream", "reader"],
)
NORMALIZER_LAG = Gauge(
    "penstock_normalizer_lag_frames",
    "The distance from the oldest unfinished source frame of a partition to the newest one, in "
    "frames of RAW; the largest of this normalizer's partitions",
    ["shard"],
)
STREAM_BYTES = Gauge("penstock_stream_bytes", "Bytes that a stream of NATS holds", ["stream"])
STREAM_LIMIT = Gauge(
    "penstock_stream_limit_bytes",
    "Bytes that a stream of NATS may hold (max_bytes); streams without such a limit have none",
    ["stream"],
)
APPROVALS_PENDING = MeasuredGauge(
    "penstock_approvals_pending", "Approvals that wait for a decision"
)
APPROVALS_OLDEST = MeasuredGauge(
    "penstock_approvals_oldest_seconds",
    "Seconds since the oldest pending approval was requested; 0 if none is pending",
)
LEASE_CHANGES = Counter(
    "penstock_lease_changes_total",
    "Partitions that this normalizer has taken or given up",
    ["change"],
)
GAPS_REPAIRED = Counter(
    "penstock_gaps_repaired_total",
    "Gaps in live events that NATS did not deliver, and that were read from the stream instead",
)
RESUMES = Counter(
    "penstock_resumes_total",
    "Client streams that continued at a cursor: hit, or truncated if events are no longer kept",
    ["result"],
)

LOOP_LONGEST_TURN = MeasuredGauge(
    "penstock_loop_longest_turn_seconds",
    "Seconds of the longest turn of the process's event loop in the last 30 to 60 s; nobody is "
    "served during a turn",
)

FRAMES = Counter("penstock_raw_frames_total", "Source frames written to RAW", ["kind"])
EVENTS = Counter("penstock_events_total", "Canonical events published", ["type"])
CONFLICTS = Counter("penstock_fence_conflicts_total", "Publishes that the fence refused")
HISTORY_LOST = Counter(
    "penstock_history_lost_total", "Runs ended because unread source frames of theirs had expired"
)
RUNS_STANDING = Gauge(
    "penstock_runs_standing", "Runs that are blocked at this normalizer, which retries them"
)
RUNS_STUCK = Counter(
    "penstock_runs_stuck_total", "Open runs that the watchdog found stuck, and why", ["why"]
)
LEGS = Counter("penstock_legs_total", "Upstream requests, by outcome", ["outcome"])
STARTS_WAITING = Gauge(
    "penstock_starts_waiting", "Starts that wait at this connector for a free leg"
)
LEGS_OPEN = Gauge("penstock_legs_open", "Upstream connections held now")
PARTITIONS = Gauge("penstock_partitions", "Partitions that this normalizer works on")
CLIENTS = Gauge("penstock_clients", "Client streams open now", ["dialect"])
DELIVERED = Counter("penstock_delivered_total", "Events written to clients", ["dialect"])
SLOW_CLIENTS = Counter("penstock_slow_clients_total", "Clients dropped because they did not read")
RING_BYTES = Gauge("penstock_ring_bytes", "Bytes of recent frames kept for clients that reconnect")
STREAMS_REFUSED = Counter(
    "penstock_streams_refused_total", "Client streams that were not opened (503)", ["reason"]
)
SENT_AWAY = Counter(
    "penstock_sent_away_total",
    "Client streams closed so that clients reconnect elsewhere",
    ["reason"],
)
DECISIONS = Counter("penstock_decisions_total", "Decisions taken", ["outcome"])
POLICY_VERSION = MeasuredGauge(
    "penstock_policy_version", "The version of the approvals policy that holds"
)
POLICIES_REFUSED = Counter(
    "penstock_policies_refused_total", "Policies that were refused for a mistake", ["source"]
)
BUDGETS_VERSION = MeasuredGauge("penstock_budgets_version", "The version of the budgets in force")
BUDGETS_REFUSED = Counter(
    "penstock_budgets_refused_total", "Documents of budgets refused for a mistake", ["source"]
)
BUDGET_ERRORS = Counter(
    "penstock_budget_errors_total", "Conditions of budgets with an error, by budget", ["budget"]
)
BUDGET_REFUSALS = Counter(
    "penstock_budget_refusals_total", "Starts that a budget has refused", ["budget"]
)
BUDGET_SHARE = Gauge(
    "penstock_budget_used_share",
    "The greatest share of its limit that is used in any current account of a budget of several "
    "runs, with what runs have set aside",
    ["budget"],
)
BUDGET_STEPS = Counter(
    "penstock_budget_steps_total",
    "Steps of budgets that were carried out: warn, ask or stop",
    ["budget", "do"],
)
REDACTIONS_VERSION = MeasuredGauge(
    "penstock_redactions_version", "The version of the redactions in force"
)
REDACTIONS_REFUSED = Counter(
    "penstock_redactions_refused_total", "Documents of redactions refused for a mistake", ["source"]
)
REDACTIONS = Counter(
    "penstock_redactions_total", "What redactions took out of published events, by kind", ["kind"]
)
CHECKS = Counter(
    "penstock_checks_total",
    "Requests to checkers of redactions, by outcome (checked, failed)",
    ["outcome"],
)
# By the name of the document that they are about.
DOCUMENT_VERSIONS = {
    "policy": POLICY_VERSION,
    "budgets": BUDGETS_VERSION,
    "redactions": REDACTIONS_VERSION,
}
DOCUMENTS_REFUSED = {
    "policy": POLICIES_REFUSED,
    "budgets": BUDGETS_REFUSED,
    "redactions": REDACTIONS_REFUSED,
}
POLICY_ERRORS = Counter(
    "penstock_policy_errors_total", "Conditions of the policy with an error, by rule", ["rule"]
)
OUTBOX_STUCK = MeasuredGauge(
    "penstock_outbox_stuck",
    "Decisions, questions and other changes of approvals that cannot be sent on, such as for an "
    "unreadable record",
)
CONTINUES_REFUSED = Counter(
    "penstock_continues_refused_total", "Continue commands without a decision"
)
RULE_MATCHES = Counter(
    "penstock_rule_matches_total",
    "Events that rules of automations matched, and conditions that failed",
    ["result"],
)
HOOK_REQUESTS = Counter(
    "penstock_hook_requests_total", "Requests to inbound webhooks, by outcome", ["outcome"]
)
SCHEDULE_FIRINGS = Counter(
    "penstock_schedule_firings_total",
    "Times of schedules: fired, caught_up (late), missed, stale (the rule changed), early",
    ["outcome"],
)
WORKFLOW_CONFLICTS = Counter(
    "penstock_workflow_conflicts_total",
    "Decisions about workflows' runs that were made again: another process had decided, or the "
    "outcome was unknown",
)
WORKFLOW_RUNS = Counter(
    "penstock_workflow_runs_total", "Workflows' runs that have ended, by status", ["status"]
)
WORKFLOW_STEPS = Counter(
    "penstock_workflow_steps_total",
    "Steps of workflows that have ended, and items of loops, by outcome",
    ["outcome"],
)
WORKFLOW_INPUTS_WAITING = MeasuredGauge(
    "penstock_workflow_inputs_waiting",
    "Inputs of workflows' runs, and events that may be inputs, that no process has taken yet",
)
WORKFLOWS_IN_MEMORY = Gauge(
    "penstock_workflows_in_memory", "Workflows' runs that this process has in memory"
)
DELIVERIES = Counter(
    "penstock_deliveries_total",
    "Deliveries that have their outcome: delivered, failed, or dropped",
    ["outcome"],
)
DELIVERY_ATTEMPTS = Counter(
    "penstock_delivery_attempts_total", "Attempts of deliveries, by result", ["result"]
)
DELIVERIES_DEFERRED = Counter(
    "penstock_deliveries_deferred_total",
    "Deliveries put off without an attempt: the rule is paused, its owner has no place, or the "
    "receiver is busy or away",
)
DELIVERY_SECONDS = Histogram(
    "penstock_delivery_seconds",
    "Seconds that one attempt of a delivery took",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
RULE_FAILURES = Gauge(
    "penstock_rule_failures",
    "Failed attempts in a row of rules that have five or more, at most 100 rules for each process",
    ["rule"],
)
BREAKERS_OPEN = Gauge("penstock_breakers_open", "Endpoints that get no requests for now")
SPANS = Counter(
    "penstock_spans_total",
    "Spans of traces: recorded, exported, failed (the collector did not take them) or dropped "
    "(too many waited)",
    ["outcome"],
)
DEADLETTERS = Counter("penstock_deadletters_total", "Messages given up", ["service"])
DEADLETTERS_KEPT = MeasuredGauge(
    "penstock_deadletters_kept", "Dead letters that have not been dropped"
)
NATS_CONNECTED = Gauge("penstock_nats_connected", "1 while NATS can be used", ["service"])
NATS_TROUBLES = Gauge(
    "penstock_nats_troubles", "The number of reasons that /readyz gives", ["service"]
)
NATS_RECONNECTS = Counter("penstock_nats_reconnects_total", "Reconnects to NATS")
CLOCK_OFFSET = Gauge(
    "penstock_clock_offset_seconds",
    "Seconds by which the clock of this machine is ahead of NATS's",
    ["service"],
)
NATS_REFUSED = Counter(
    "penstock_nats_refused_total",
    "Refusals of NATS, by kind (full, denied, unheard, away, lost, sealed) and place",
    ["why", "where"],
)
CONTENT_REFUSED = Counter(
    "penstock_content_refused_total",
    "Sealed messages that were changed, or stand where they do not belong",
)
NATS_LOST = Gauge(
    "penstock_nats_lost_messages",
    "Messages that a stream has lost at its end in the last hour; a restore adds its --lost",
    ["service", "stream"],
)
UNREADABLE_RECORDS = Counter(
    "penstock_unreadable_records_total",
    "Records that lists leave out because they cannot be parsed, by bucket",
    ["bucket"],
)
ADDED_SECONDS = Histogram(
    "penstock_added_seconds",
    "Seconds from the receipt of a source frame until an edge has written its event to clients; "
    "each edge measures one live event a second",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
)
FOLD_SECONDS = Histogram(
    "penstock_fold_seconds",
    "Seconds from the receipt of a source frame to the publication of its events",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
)


def name_agents(ids: Iterable[str]) -> None:
    """Give each of these configured agents a separate value of the label `agent`.

    Only the first `MAX_AGENT_LABELS` agents get a value of their own. Clients choose the names of
    agents in requests. If each name got a value, clients could create any number of time series.
    """
    for id_ in ids:
        if len(_agent_labels) >= MAX_AGENT_LABELS:
            return
        _agent_labels.add(id_)


def agent_label(id: str) -> str:
    """Return the label's value for an agent; `other` if it has none of its own."""
    return id if id in _agent_labels else OTHER


def model_label(name: str) -> str:
    """Return the label's value for a model; `other` beyond the first ones."""
    name = name[:100]
    if name not in _model_labels:
        if len(_model_labels) >= MAX_MODEL_LABELS:
            return OTHER
        _model_labels.add(name)
    return name


def count_runs_from_zero(outcomes: Iterable[str]) -> None:
    """Create the counters of runs for each named agent, with the value 0.

    The function `increase` of Prometheus does not notice a counter that appears with the value 1.
    Without a counter at 0, `increase` would miss an agent's first failure.
    """
    for agent in (*_agent_labels, OTHER):
        for outcome in outcomes:
            RUNS.labels(agent, outcome)


def name_process(agents: Iterable[str]) -> None:
    name_agents(agents)
    BUILD.labels(version("penstock"), platform.python_version()).set(1)


HIDDEN: Final = "[redacted]"

# Patterns of secrets. Group 1 of each pattern is the text before the secret, which is kept. The
# rest of the match is the secret. A match ends before a closing quote, before the end of the line,
# or in a URL before the end of the parameter. So a redacted JSON line stays valid JSON.
_SECRETS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Each of the next three patterns matches a header that is written as text, in a dict, or as
        # a pair of bytes.
        r"""((?:proxy-)?authorization\W{1,6}?(?:b?['"])?(?:bearer|basic)\s+)[^\s"'\\,;]+""",
        r"""((?:set-)?cookie(?:['"]?\s*[:=]|['"]\s*,)\s*(?:b?['"])?)[^"'\\\r\n]+""",
        r"""(x-csrf-token(?:['"]?\s*[:=]|['"]\s*,)\s*(?:b?['"])?)[^\s"'\\,;]+""",
        r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}",
        r"([?&](?:token|access_token)=)[^\s&#\"'\\]+",
        r"(\b(?:__Host-)?penstock_(?:token|csrf)=)[^\s;\"'\\]+",
        r"()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
        r"()\bp(?:st|sv|ln)_[A-Za-z0-9_-]{20,}",  # Tokens, and the secrets of one-time links.
        r"()\bwhsec_[A-Za-z0-9_+/=-]{16,}",  # Signing secrets of webhooks.
        r"(\binput_value=).*?(?=, input_type=)",  # Errors of pydantic repeat the refused value.
    )
)


def redact(text: str) -> str:
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{HIDDEN}", text)
    return text


class RedactingFormatter(logging.Formatter):
    """Removes credentials from the lines and the tracebacks of another formatter."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return redact(self._inner.format(record))


def configure_logging(level: str = "info", format: LogFormat = "text") -> None:
    """Configure logging to stderr with one line for each entry, as `text` or as JSON objects.

    JSON objects have fields for the run, its trace and more (see `log_fields`). Lines and
    tracebacks have no credentials, and no values that the errors of pydantic repeat.
    """
    colours = sys.stderr.isatty()
    lines = JsonFormatter() if format == "json" else TextFormatter(colours=colours)
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(lines))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore", "nats", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
