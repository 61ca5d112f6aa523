"""Typed subscribers of events, with FastStream. Needs `pip install 'penstock[subscribe]'`.

docs/subscribe.md describes how to use this module.
"""

from penstock.bus.admin.subscribers import Start
from penstock.bus.errors import StartUpError
from penstock.subscribe.received import Later, Received, Reject
from penstock.subscribe.settings import Limits, Nats
from penstock.subscribe.subscriber import Subscriber

__all__ = ["Later", "Limits", "Nats", "Received", "Reject", "Start", "StartUpError", "Subscriber"]
