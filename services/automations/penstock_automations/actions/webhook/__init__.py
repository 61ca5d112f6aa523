"""Sends signed webhooks, one request at a time; `delivery` makes the retries."""
