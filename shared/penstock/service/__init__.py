"""Provides what every service needs: the base class, the connection to the bus, and the process.

The command `python -m penstock_<name>` calls `main` with the service's class.
"""

from penstock.service.connecting import bus_settings, connect, pod_name
from penstock.service.consumption import Consumption
from penstock.service.key_service import open_content_keys
from penstock.service.process import main, serve
from penstock.service.service import Context, Service, routes_on_bus
from penstock.service.stopping import Stop, drain, stop, stop_on_signals

__all__ = [
    "Consumption",
    "Context",
    "Service",
    "Stop",
    "bus_settings",
    "connect",
    "drain",
    "main",
    "open_content_keys",
    "pod_name",
    "routes_on_bus",
    "serve",
    "stop",
    "stop_on_signals",
]
