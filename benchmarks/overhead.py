"""Time and memory of scoring beside one update: of every exit of BERT-base, or `limits`.

    python benchmarks/overhead.py                      # a few minutes on two cores
    python benchmarks/overhead.py --score entropy --length 512 --batch 4
    python benchmarks/overhead.py limits               # what scoring less of each candidate costs and keeps

Every round times, in a random order, an update on n sequences twice (forward, backward, AdamW)
and the choice of n among 2n candidates at each exit, so that a busy machine slows all of them
alike; a ratio is taken within its round, and the median over rounds is reported. The ratio of
processor time, summed over threads, stands beside it: other processes disturb it less. The two
plainer ways of having the same scores are timed in every third round. The ratio of FLOPs is what
scoring would cost if it did its products as fast as the update does its own.

Memory is measured in a fresh process for each case: the growth of its peak resident set over
what is resident with the model (and, for the update, the optimizer's state) in place and every
library warm. The process gives freed memory back at once (MALLOC_MMAP_THRESHOLD_), so that the
peak is that of live tensors and not of the allocator's caches.
"""

from __future__ import annotations

import sys

from overhead_parts import exits, limits


def main() -> int:
    if sys.argv[1:2] == ["limits"]:
        return limits.main(sys.argv[2:])
    return exits.main(sys.argv[1:], str(__doc__))


if __name__ == "__main__":
    raise SystemExit(main())
