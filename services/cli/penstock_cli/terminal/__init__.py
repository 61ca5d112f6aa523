"""The client of the HTTP API: requests, streams, and what a person reads in a terminal."""
