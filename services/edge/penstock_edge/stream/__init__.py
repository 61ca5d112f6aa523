"""Streams: hubs read and encode messages once for many clients, and responses write the result."""
