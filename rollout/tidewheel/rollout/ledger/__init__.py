"""The decision ledger: what each look saw and said, small enough to keep, exact enough to judge again."""
