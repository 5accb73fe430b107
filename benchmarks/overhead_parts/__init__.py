"""What `overhead.py` measures, and how."""
