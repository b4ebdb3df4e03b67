"""Quality beside latency: a fixed set of prompts replayed on both versions, and what the answers say."""
