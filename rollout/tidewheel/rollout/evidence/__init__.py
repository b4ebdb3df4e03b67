"""Evidence that stays valid however often one looks at it."""
