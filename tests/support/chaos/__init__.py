"""A whole system of real processes, hurt by a seeded schedule, and every run of it checked.

`schedule` says what happens when, `plans` what is asked for, `fleet` and `brokers` are the
processes, `links` and `recorder` the connections between them, `clients` what people do,
`evidence` what is left in the streams, `checker` what must be true of it, `harness` all of it.
"""
