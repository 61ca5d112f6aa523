"""Streams: a hub reads and encodes messages once for many clients; responses write the bytes."""
