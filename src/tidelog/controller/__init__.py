"""Who decides about topics, leaders and settings, and how the decisions reach tree, brokers and logs."""
