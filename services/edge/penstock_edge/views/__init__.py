"""Views define which messages clients read, and how messages are encoded and framed. Pure."""
