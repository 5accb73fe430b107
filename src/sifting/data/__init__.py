"""Batches of candidates: how many samples one holds, and taking some of them."""
