"""Benches: many runs (methods, held-out domains, seeds), their tables, figures and statistics."""

WORKERS = "unseen.bench.workers"
"""The module for the fork server to preload, named here so that starting it needs none of its libraries."""
