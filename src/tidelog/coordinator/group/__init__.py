"""Consumer groups: members, rebalances and committed offsets."""
