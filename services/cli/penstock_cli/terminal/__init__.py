"""The client of the HTTP API: requests, streams, and the output in a terminal."""
