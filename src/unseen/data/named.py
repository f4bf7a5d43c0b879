"""Importing this module enters every named data set into SOURCES."""

from unseen.data import digits, pacs, rotated

__all__ = ["digits", "pacs", "rotated"]
