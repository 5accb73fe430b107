"""How a model is called, where it can be left early, and what it is trained for; leaving no trace."""
