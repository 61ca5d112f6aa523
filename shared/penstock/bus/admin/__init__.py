"""What an operator changes: streams, permissions, subscribers, replays of dead letters."""
