"""Sends HTTP requests to agent servers; each request has its own connection, without a pool."""
