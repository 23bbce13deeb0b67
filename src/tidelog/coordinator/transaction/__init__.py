"""The transaction coordinator: states, markers and producer ids of transactions."""
