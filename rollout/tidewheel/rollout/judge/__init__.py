"""The judge: from counters of both arms to a verdict that says why."""
