"""One-time links: a page on which a person decides one approval, without an account."""
