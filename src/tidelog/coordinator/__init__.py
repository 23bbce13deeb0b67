"""Who keeps groups and transactions: state machines over the records of internal topics."""
