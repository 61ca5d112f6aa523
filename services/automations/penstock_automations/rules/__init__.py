"""What rules are: their form, their checks, and the secrets that sign webhooks."""
