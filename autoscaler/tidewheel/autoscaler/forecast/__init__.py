"""What demand will be: predictors that know a history, and the combination that trusts those that were right."""
