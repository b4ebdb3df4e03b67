"""Replies that outlive connections.

A ``Reply`` is made for each request for inference. Its producer (an ``Exchange``) gives it events, which it numbers
and puts into its ``tokenlog`` before any ``Listener`` shows them. A reply that a client asked to be *resumable* lives
on when its listeners go; ``book`` finds it again, by id or by idempotency key, and ``stores`` let other gateways find
it too.
When its replica is lost, ``continuation`` plans how another one carries on from token ids.
"""
