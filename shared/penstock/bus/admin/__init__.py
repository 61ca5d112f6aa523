"""Makes an operator's changes: streams, permissions, subscribers, replays of dead letters."""
