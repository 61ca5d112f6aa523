"""Attacks of one user or of strangers, and a second user whose waiting is measured."""
