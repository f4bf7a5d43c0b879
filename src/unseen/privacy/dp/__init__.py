"""Differential privacy: of whole clients, or of single training samples."""
