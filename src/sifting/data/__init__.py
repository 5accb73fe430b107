"""Batches of candidates: how many samples one holds, and taking some of them.

From the ground up: `tree` walks containers, `member` handles one member of a batch, `count` finds how
many samples there are, `divide` which members go by sample, `documents` and `packing` what lies
packed in a row; `samples` puts them together.
"""
