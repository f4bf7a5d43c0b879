"""Secagg."""
