"""Writing to streams: publishing, fenced appends, large payloads."""
