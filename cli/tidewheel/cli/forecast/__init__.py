"""`tidewheel forecast`: demand as it was, as it is expected, and what is prepared for."""
