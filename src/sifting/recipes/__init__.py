"""The paper's experiments, as recipes that run at every size."""
