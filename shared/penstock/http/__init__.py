"""An HTTP/1.1 client with a connection for each request (docs/decisions/0291)."""
