"""Callbacks of a run: the `Callback` base class and trackers."""
