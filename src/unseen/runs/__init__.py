"""A run on disk: its folder, records, checkpoint and per-client state, and one reader for all of them."""
