"""Federations across machines: the coordinator, the sites, their keys, and submitting a job to them."""
