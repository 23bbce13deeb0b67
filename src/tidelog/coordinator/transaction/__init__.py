"""Transactions: their states, their markers, and the ids of their producers."""
