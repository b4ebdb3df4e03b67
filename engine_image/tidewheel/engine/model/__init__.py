"""The decoder and where its weights and vocabulary come from."""
