"""The tasks of the proving ground, each a recipe with the sizes "smoke" and "full"."""
