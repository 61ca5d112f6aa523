"""Switches tracing on, if the variables of OpenTelemetry name a collector."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final, Protocol
from urllib.parse import urlsplit

from penstock.tracing import spans

log = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Exporter(Protocol):
    """Exports spans in the background."""

    async def stop(self) -> None:
        """Export the spans that are still in the queue, for up to a few seconds."""
        ...


class TracingRefused(ValueError):
    """The error for variables of OpenTelemetry that ask for something that is not possible."""


def start(service: str, instance: str, environment: Mapping[str, str]) -> Exporter | None:
    """Switch tracing on, and return the exporter, if the variables name an endpoint. Raises
    TracingRefused if the variables are wrong, or the packages are missing."""
    endpoint = _first(environment, _ENDPOINTS)
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    if endpoint is None or is_disabled or exporter == "none":
        return None
    if exporter != "otlp":
        raise TracingRefused(f"OTEL_TRACES_EXPORTER is {exporter!r}: use `otlp`, or `none`")
    if not _is_url(endpoint):
        raise TracingRefused(
            "OTEL_EXPORTER_OTLP_ENDPOINT is no URL: a URL begins with http:// or https://, and the "
            "collector's port for OTLP over HTTP is usually 4318"
        )
    protocol = _first(environment, _PROTOCOLS) or "http/protobuf"
    if protocol != "http/protobuf":
        raise TracingRefused(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: only `http/protobuf` is possible"
        )
    try:
        from penstock.tracing.otlp import Otlp  # noqa: PLC0415
    except ImportError as error:
        raise TracingRefused(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but a package is missing ({error.name}): "
            "install `penstock[traces]`"
        ) from None
    recorder = Otlp(service, instance, version("penstock"), endpoint)
    spans.use(recorder)
    log.info("traces: spans are exported as the service %s", service)
    return recorder


async def stop(exporter: Exporter | None) -> None:
    """Switch tracing off, after the last spans are exported, or after a few seconds."""
    if exporter is not None:
        spans.use(None)
        await exporter.stop()


def _is_url(endpoint: str) -> bool:
    """Return whether the text is an HTTP or HTTPS URL with a host, and with a valid port, if
    any."""
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environment.get(name, "").strip())), None)
