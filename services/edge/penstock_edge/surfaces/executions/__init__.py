"""The surface that serves executions-sse.md."""
