"""Checkers of histories: groups of consumers, and transactions. They are pure functions."""
