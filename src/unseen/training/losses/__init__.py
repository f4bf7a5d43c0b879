"""Loss terms that methods add to the task loss."""
