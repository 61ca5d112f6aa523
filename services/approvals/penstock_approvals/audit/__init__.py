"""Keeps the audit: an append-only chain of hashes for each run, and anchors over all chains.

`chain` and `anchor_chain` define the records, `verify` checks them, and `entries` makes them from
approvals; these modules do no I/O. `trail` and `anchors` write the records to the stream AUDIT.
"""
