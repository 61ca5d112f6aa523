"""Run Penstock as real processes, inject faults on a seeded schedule, and check every run.

`schedule` makes the faults and their times. `plans` makes the requests. `fleet` and `brokers` start
the processes. `links` and `recorder` are proxies for the connections between them. `clients` act as
users. `evidence` holds what the streams contain afterwards. `checker` says what must be true of
this evidence. `harness` plays a whole round.
"""
