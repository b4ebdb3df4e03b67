"""What the operator knows: kopf's watch streams and our own lists feed one cache of slim records."""
