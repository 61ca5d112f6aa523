"""Writes to streams: publishes, fenced appends, large payloads."""
