"""Which operator writes: one Lease, taken by optimistic writes, judged by the monotonic clock."""
