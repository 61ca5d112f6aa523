"""Computes the outcome of a request from votes, the policy and the deadline. Pure."""
