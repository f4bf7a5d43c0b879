"""Clients in worker processes that share memory with the server."""
