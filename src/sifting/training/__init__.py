"""Training a problem with an arm, into a run folder."""
