"""Which modules' examples are not run here."""

from importlib.util import find_spec

# TRL needs Python 3.11, and the package does not
collect_ignore = [] if find_spec("trl") else ["src/sifting/integrations/trl.py"]
