"""The broker's and the topics' settings: what they are, where a value comes from, and how they change."""
