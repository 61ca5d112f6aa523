"""Records the spans of traces.

`spans` is the interface for services, `context` has the W3C trace context, and `otlp` uses the SDK
of OpenTelemetry.

Only `otlp` imports modules of OpenTelemetry, and `otlp` is imported only if tracing is on.
"""
