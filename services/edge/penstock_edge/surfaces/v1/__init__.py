"""The surface that serves Penstock's own API, under `/v1`."""
