"""Runs on Flower from end to end: what coordinator and sites do, and how a job is handed in and followed."""
