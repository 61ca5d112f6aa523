"""Decodes and encodes the events of Google ADK (`POST /run_sse`, versions 1.16 to 2.13)."""
