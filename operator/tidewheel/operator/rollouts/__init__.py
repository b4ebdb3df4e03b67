"""Rollouts as they run: the judge, its readings, gateways that confirm, the ledger. Decisions are in `planning`."""
