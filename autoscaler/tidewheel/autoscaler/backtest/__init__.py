"""Replays history through this and other policies, as if it happened now: nothing knows a bucket that has not ended."""
