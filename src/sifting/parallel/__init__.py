"""Several processes: how a model is spread over them, and what they tell each other."""
