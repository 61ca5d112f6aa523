"""Holds the state that processes share: buckets, leases, peers, dead letters, lost stream ends."""
