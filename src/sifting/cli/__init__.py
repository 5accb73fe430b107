"""The `sift` command: one file per command."""
