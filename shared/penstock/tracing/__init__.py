"""Records the spans of traces.

`spans` is the interface, `context` has the W3C trace context, and `otlp` uses the SDK.

The modules of OpenTelemetry are imported only by `otlp`, and only if tracing is on.
"""
