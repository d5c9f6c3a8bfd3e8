"""What to run for the papers' tables and figures, and what came out: python -m report."""
