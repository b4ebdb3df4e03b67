"""From one version to the next on evidence: the judge, the step machine, the plan before the start, the ledger.

Pure: no I/O, no clock, no randomness of its own. Whoever calls it passes moments in, fills in readings and carries out
decisions.
"""
