"""Calls typed handlers with events, using FastStream. Needs `pip install 'penstock[subscribe]'`.

docs/subscribe.md describes how to use this module.
"""

try:
    from penstock.bus.admin.subscribers import Start
    from penstock.bus.errors import StartUpError
    from penstock.subscribe.received import Later, Received, Reject, Sealed
    from penstock.subscribe.settings import Limits, Nats
    from penstock.subscribe.subscriber import Subscriber
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: penstock.subscribe needs more than the contract does; "
        "pip install 'penstock[subscribe]'",
        name=error.name,
    ) from error

__all__ = [
    "Later",
    "Limits",
    "Nats",
    "Received",
    "Reject",
    "Sealed",
    "Start",
    "StartUpError",
    "Subscriber",
]
