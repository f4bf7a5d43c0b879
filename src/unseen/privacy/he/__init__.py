"""Ciphertexts and what a server computes on them; knows bytes and numbers, nothing of models or training.

Without torch, so that the process in which the server computes starts at once.
"""
