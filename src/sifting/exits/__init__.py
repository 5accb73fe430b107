"""Exits: where a scoring pass leaves the model, and what it makes of what it finds there."""
