"""Jobs of automations: their form, their stream, and the queues that keep them in order."""
