"""The declarations of all messages: one module per API, and one per kind of stored record."""
