"""Importing this module enters every named data set into SOURCES."""

from unseen.data import benchmarks, digits, office_caltech_home, rotated

__all__ = ["benchmarks", "digits", "office_caltech_home", "rotated"]
