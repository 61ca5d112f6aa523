"""What processes share: KV buckets, leases, living peers, dead letters, lost stream ends."""
