"""What can be said before a rollout starts: what its traffic can show, whether it fits, when it may move."""
