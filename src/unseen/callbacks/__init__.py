"""What follows a run while it trains: the `Callback` protocol, progress and trackers."""
