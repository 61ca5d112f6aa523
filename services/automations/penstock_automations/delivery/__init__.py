"""Carries out jobs: signed requests, retries, outcomes, dead letters."""
