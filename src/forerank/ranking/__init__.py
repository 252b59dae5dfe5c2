"""How many stand before an item: soft (differentiable, for training) and hard (exact, for evaluation)."""
