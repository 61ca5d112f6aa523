"""The client of the HTTP API, which sends requests, follows streams, and writes the output for a
terminal."""
