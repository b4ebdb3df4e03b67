"""A closed loop: demand, gateways' metrics, replicas that take time to start, and the planner that the operator runs.

Everything comes from a scenario and a seed; the same scenario gives the same day, bit for bit.
"""
