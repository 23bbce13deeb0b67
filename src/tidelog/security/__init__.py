"""Security: key stores, TLS contexts, and who may do what."""
