"""The `sift` command: one file a command."""
