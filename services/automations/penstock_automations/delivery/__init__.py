"""Carries out jobs: makes attempts with the executors of `actions`, retries, records outcomes."""
