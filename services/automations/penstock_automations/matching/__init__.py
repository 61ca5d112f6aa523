"""Matches events with rules, and publishes a job for each match."""
