"""Rollouts as decisions: what the step machine is shown, and what its answer means for table, replicas and status."""
