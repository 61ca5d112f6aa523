"""The responses in which a client gets a view: an event stream, one body, pages, a WebSocket."""
