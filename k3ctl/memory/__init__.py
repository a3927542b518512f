"""GPU memory of a layout by part: weights, KDA state, MLA cache, what engines take besides. Pure arithmetic."""
