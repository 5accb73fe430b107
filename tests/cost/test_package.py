"""What the package imports."""

from __future__ import annotations

import subprocess
import sys


def test_cost_needs_nothing_but_python():
    code = "import sys, sifting.cost; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
