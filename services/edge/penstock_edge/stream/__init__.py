"""Streams: one reading shared by many clients, and the ways in which it reaches each of them."""
