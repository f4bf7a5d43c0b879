"""Evaluation on whole data sets, metrics per group, and model selection. Imports no torch."""
