"""Decisions of the operator: pure functions from a picture of one model to actions and statuses."""
