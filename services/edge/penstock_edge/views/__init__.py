"""Views: the messages that clients read, their encoding, framing and positions. Pure."""
