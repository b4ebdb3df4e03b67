"""`tidewheel why NAME`: every number behind what an object does, and the sentence that goes with them."""
