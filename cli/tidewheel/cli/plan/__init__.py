"""`tidewheel plan`: from users to GPUs, power and price."""
