"""The demo agents' tools. The results are made up: no tool looks up or deletes anything."""

from __future__ import annotations

from typing import Any


def check_database_status(host: str, timeout: int) -> dict[str, Any]:
    """Check a database host; `timeout` is in seconds."""
    return {"status": "healthy", "connections": 45, "latency_ms": 12}


def get_weather(city: str) -> dict[str, Any]:
    """Get the weather of a city."""
    return {"city": city, "temperature_c": 21, "sky": "clear"}


def search(topic: str) -> dict[str, Any]:
    """Search for sources on a topic."""
    return {"topic": topic, "sources": ["An introduction", "A critique of the introduction"]}


def delete_file(path: str) -> dict[str, Any]:
    """Delete a file. Somebody must allow it."""
    return {"deleted": path}


FREE = (check_database_status, get_weather, search)
