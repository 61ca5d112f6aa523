"""Collects what `penstock doctor` checks besides NATS: users, files, agents, probes and values."""
