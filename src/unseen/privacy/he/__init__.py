"""Homomorphic encryption of updates.

This file, `ckks` and `server_process` load without torch, so that the server process starts at once.
"""
