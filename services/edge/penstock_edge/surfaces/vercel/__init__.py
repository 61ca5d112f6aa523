"""The surface for clients of the Vercel AI SDK: `useChat` and its transport."""

from __future__ import annotations

from penstock_edge.surfaces.surface import Surface
from penstock_edge.surfaces.vercel.chats import Chats


class Vercel(Surface):
    """Has the handlers for chats, with agents of every protocol."""

    handlers = (Chats,)
