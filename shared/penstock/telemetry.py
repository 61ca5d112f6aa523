"""Logs and metrics: structured lines that carry the run id, and Prometheus counters."""

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
    "penstock_history_lost_total", "Runs ended since frames of theirs had aged out unread"
)
RUNS_STANDING = Gauge(
    "penstock_runs_standing", "Runs that this normalizer cannot work on, and tries again"
)
RUNS_STUCK = Counter(
    "penstock_runs_stuck_total", "Open runs that nobody would ever have moved, and why", ["why"]
)
LEGS = Counter("penstock_legs_total", "Upstream requests, by how they ended", ["outcome"])
STARTS_WAITING = Gauge(
    "penstock_starts_waiting", "Starts that this connector has fetched and has no leg for yet"
)
LEGS_OPEN = Gauge("penstock_legs_open", "Upstream connections held now")
PARTITIONS = Gauge("penstock_partitions", "Partitions that this normalizer works on")
CLIENTS = Gauge("penstock_clients", "Client streams open now", ["dialect"])
DELIVERED = Counter("penstock_delivered_total", "Events written to clients", ["dialect"])
SLOW_CLIENTS = Counter("penstock_slow_clients_total", "Clients dropped since they did not read")
RING_BYTES = Gauge("penstock_ring_bytes", "Recent frames kept for clients that come back")
STREAMS_REFUSED = Counter(
    "penstock_streams_refused_total", "Client streams that were not opened (503)", ["reason"]
)
SENT_AWAY = Counter(
    "penstock_sent_away_total", "Client streams ended so that their clients come back", ["reason"]
)
DECISIONS = Counter("penstock_decisions_total", "Decisions taken", ["outcome"])
OUTBOX_STUCK = Gauge(
    "penstock_outbox_stuck", "Decisions that cannot be sent on, such as for an unreadable record"
)
CONTINUES_REFUSED = Counter(
    "penstock_continues_refused_total", "Continue commands that no decision stood behind"
)
DEADLETTERS = Counter("penstock_deadletters_total", "Messages given up", ["service"])
DEADLETTERS_KEPT = Gauge("penstock_deadletters_kept", "Dead letters that nobody has dropped yet")
NATS_CONNECTED = Gauge("penstock_nats_connected", "1 while NATS can be used", ["service"])
NATS_TROUBLES = Gauge("penstock_nats_troubles", "What is in the way, as /readyz says", ["service"])
NATS_RECONNECTS = Counter("penstock_nats_reconnects_total", "Connections lost and made anew")
CLOCK_OFFSET = Gauge(
    "penstock_clock_offset_seconds",
    "By how much the clock of this machine is ahead of NATS's",
    ["service"],
)
NATS_REFUSED = Counter(
    "penstock_nats_refused_total",
    "What NATS did not do: full, denied, unheard, away (no leader), lost; where",
    ["why", "where"],
)
NATS_LOST = Gauge(
    "penstock_nats_lost_messages",
    "Messages at the end of a stream that were acknowledged and lost, as far as is known",
    ["service", "stream"],
)
FOLD_SECONDS = Histogram(
    "penstock_fold_seconds",
    "From a source frame's receipt to its events' publication",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
)


def configure_logging(level: str = "info", format: LogFormat = "text") -> None:
    """One line an entry on stderr: for people (`text`), or JSON objects."""
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
            # the default one prints local variables: payloads, and headers with tokens in them
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
