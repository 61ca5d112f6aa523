"""Takes the messages that concern workflows' runs, and decides what they change."""
