"""From scores to indices and weights: pure."""
