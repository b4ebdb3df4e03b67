"""`tidewheel status`: what runs, what carries traffic, and what is wrong, in words."""
