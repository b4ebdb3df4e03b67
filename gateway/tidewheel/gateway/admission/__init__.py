"""Who may ask, how much, and in what order: keys, quotas, lanes, the degradation ladder.

Pure parts (``keys``, ``bucket``, ``lanes``, ``eta``, ``ladder``, ``tokens``, ``room``) take the moment as an argument;
``keyfile``, ``quota``, ``gate`` and ``desk`` act.
"""
