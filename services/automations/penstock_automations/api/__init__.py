"""The HTTP routes of automations: rules, trials of rules, deliveries, endpoints."""
