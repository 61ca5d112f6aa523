"""Penstock: a workflow-orchestrated streaming bridge for AI agents on NATS JetStream."""
