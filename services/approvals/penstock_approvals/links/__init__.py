"""Makes and serves one-time links: pages on which a person decides without an account."""
