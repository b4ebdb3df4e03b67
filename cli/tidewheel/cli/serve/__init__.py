"""`tidewheel serve`: one engine and one gateway on this machine, for a first look without a cluster."""
