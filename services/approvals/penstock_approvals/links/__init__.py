"""Makes one-time links, and serves their pages, on which a person decides without an account."""
