"""A rollout as people meet it: watch it, ask why, pause, resume, promote, retry."""
