"""The surface of executions-sse.md."""
