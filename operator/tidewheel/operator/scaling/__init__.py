"""Scaling in the operator: reads demand and capacity, asks the autoscaler, and hands its advice to the planners."""
