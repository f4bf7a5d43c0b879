"""Domains come in: folders, tables, arrays, the named benchmark sets; splits; transforms."""

from unseen.data.dataset import Column, DataSet, Indices, Task
from unseen.data.samples import Batch, Samples
from unseen.data.sources import SOURCES, DataRequest, Source, load_data

__all__ = [
    "SOURCES",
    "Batch",
    "Column",
    "DataRequest",
    "DataSet",
    "Indices",
    "Samples",
    "Source",
    "Task",
    "load_data",
]
