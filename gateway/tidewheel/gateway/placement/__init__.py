"""Which replica takes a request: prefix affinity with bounded load, what replicas report, spill to a peer region."""
