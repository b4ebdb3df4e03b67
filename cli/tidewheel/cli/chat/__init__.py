"""`tidewheel chat`: a conversation in the terminal, streamed."""
