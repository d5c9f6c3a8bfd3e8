"""What to run for the papers' tables, figures and claims, and what came out: python -m report."""
