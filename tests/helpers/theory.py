"""Short commands of `sift theory`."""

from __future__ import annotations

SMALL = {
    "gsgd": ["--steps", "60", "--runs", "5", "--dim", "3", "-R", "3"],
    "exit": ["--layers", "3", "--width", "8", "--pairs", "500"],
    "rho": ["-R", "2", "9", "1000000", "--draws", "200"],
    "noise": ["--sigma", "0.1", "0.5", "--draws", "1000"],
    "kept": ["--steps", "40", "--runs", "3", "--dim", "3", "-B", "4", "--problem", "few"],
    "weakly-convex": ["--steps", "30", "--runs", "2", "-R", "3"],
}
