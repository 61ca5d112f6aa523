"""Configures logs (structured lines with the run id), and defines the Prometheus metrics."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from prometheus_client import Counter, Gauge, Histogram

LogFormat = Literal["text", "json"]

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
POLICY_VERSION = Gauge("penstock_policy_version", "The version of the approvals policy that holds")
POLICIES_REFUSED = Counter(
    "penstock_policies_refused_total", "Policies that were refused for a mistake", ["source"]
)
POLICY_ERRORS = Counter(
    "penstock_policy_errors_total", "Conditions of the policy with an error, by rule", ["rule"]
)
OUTBOX_STUCK = Gauge(
    "penstock_outbox_stuck", "Decisions that cannot be sent on, such as for an unreadable record"
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
WORKFLOW_INPUTS_WAITING = Gauge(
    "penstock_workflow_inputs_waiting",
    "Inputs of workflows' runs, and events that may be inputs, that no process has taken yet",
)
WORKFLOWS_IN_MEMORY = Gauge(
    "penstock_workflows_in_memory", "Workflows' runs that this process has in memory"
)
DELIVERIES = Counter("penstock_deliveries_total", "Deliveries that have their outcome", ["outcome"])
DELIVERY_ATTEMPTS = Counter(
    "penstock_delivery_attempts_total", "Attempts of deliveries, by result", ["result"]
)
DELIVERIES_DEFERRED = Counter(
    "penstock_deliveries_deferred_total",
    "Deliveries put off without an attempt: the rule is paused, or the receiver busy or away",
)
DELIVERY_SECONDS = Histogram(
    "penstock_delivery_seconds",
    "Seconds that one attempt of a delivery took",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
BREAKERS_OPEN = Gauge("penstock_breakers_open", "Endpoints that get no requests for now")
DEADLETTERS = Counter("penstock_deadletters_total", "Messages given up", ["service"])
DEADLETTERS_KEPT = Gauge("penstock_deadletters_kept", "Dead letters that have not been dropped")
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
    "Refusals of NATS, by kind (full, denied, unheard, away, lost) and place",
    ["why", "where"],
)
NATS_LOST = Gauge(
    "penstock_nats_lost_messages",
    "Acknowledged messages at the end of a stream that are known to be lost",
    ["service", "stream"],
)
UNREADABLE_RECORDS = Counter(
    "penstock_unreadable_records_total",
    "Records that lists leave out because they cannot be parsed, by bucket",
    ["bucket"],
)
FOLD_SECONDS = Histogram(
    "penstock_fold_seconds",
    "Seconds from the receipt of a source frame to the publication of its events",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
)


def configure_logging(level: str = "info", format: LogFormat = "text") -> None:
    """Configure logging to stderr with one line for each entry, as `text` or as JSON objects."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=0,
            # The default formatter would print local variables, such as payloads and headers with
            # tokens.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    last: list[structlog.types.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta
    ]
    if format == "json":
        last.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*last, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore", "nats", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
