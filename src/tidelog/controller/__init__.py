"""The controller: decides on topics, leaders and settings, and writes the decisions to the tree."""
