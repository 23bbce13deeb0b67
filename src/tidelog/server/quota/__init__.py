"""Client quotas: who has which, how much of it is used, and how long a client waits that uses more."""
