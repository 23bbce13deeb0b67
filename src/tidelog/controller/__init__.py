"""The controller: decides about topics, leaders and settings, and writes the decisions to the tree."""
