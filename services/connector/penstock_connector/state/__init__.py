"""What KV and RAW say of runs, sessions, claims and legs."""
