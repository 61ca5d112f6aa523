"""Read a partition of RAW in order, hand its frames to runs, and keep its checkpoint."""
