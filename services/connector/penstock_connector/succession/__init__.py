"""What happens when a connector dies or stops: its legs are taken over, or ended."""
