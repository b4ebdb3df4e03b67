"""Gateways of other regions: what they say of their queues, and the signed ticket with which a request goes there.

One hop only: a request that came with a ticket never gets another one. The peer serves it under the pin, tier and lane
that the ticket names, and charges nothing: the reservation stays with the gateway that the client asked, which also
keeps the reply's log. So a region that is lost in mid-reply is a replica that is lost: it is carried on at home.
"""
