"""Labelled images for the vision recipes: reading, decoding, augmenting."""
