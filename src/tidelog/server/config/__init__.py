"""The settings of the broker, topics and groups: definitions, values with their sources, and changes."""
