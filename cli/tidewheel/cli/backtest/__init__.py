"""`tidewheel backtest`: what each policy would have done with a recorded demand."""
