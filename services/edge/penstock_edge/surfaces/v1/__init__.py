"""Penstock's own API, under `/v1`."""
