"""Tells which statements of its protocol a server of AI agents keeps, over HTTP alone.

It has no code of Penstock, so that a server is not judged by the parser that it was written with.
"""

from __future__ import annotations
