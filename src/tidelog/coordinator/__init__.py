"""Coordinators of groups and transactions: state machines over the records of internal topics."""
