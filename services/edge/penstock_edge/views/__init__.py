"""Views: they define which messages clients read, and how these are encoded and framed. Pure."""
