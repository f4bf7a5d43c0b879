"""Importing this module enters every named data set into SOURCES."""

from unseen.data import benchmarks, camelyon17, digits, fmow, office_caltech_home, povertymap, rotated

__all__ = ["benchmarks", "camelyon17", "digits", "fmow", "office_caltech_home", "povertymap", "rotated"]
