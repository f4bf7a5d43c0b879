"""Benches: many runs (methods, held-out domains, seeds), their tables, figures and statistics."""

WORKERS = "unseen.bench.workers"
"""Module that the fork server preloads, named here so that starting it imports none of its libraries."""
