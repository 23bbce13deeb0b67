"""SASL on the broker's side: the states of an authentication, and the mechanisms."""
