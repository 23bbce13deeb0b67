"""What the cluster knows about itself: the tree of nodes, the JSON in them, and the picture made of it."""
