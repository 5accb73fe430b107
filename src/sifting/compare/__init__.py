"""Fixed-budget comparisons with controls: `sift compare`."""
