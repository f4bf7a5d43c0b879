"""Domains come in: folders, tables, arrays, the named benchmark sets; splits; transforms."""

from unseen.data.dataset import Column, DataSet, Indices, from_arrays
from unseen.data.samples import Batch, JoinedSamples, Samples
from unseen.data.sources import SOURCES, DataRequest, Source, list_sources, load_data

__all__ = [
    "SOURCES",
    "Batch",
    "Column",
    "DataRequest",
    "DataSet",
    "Indices",
    "JoinedSamples",
    "Samples",
    "Source",
    "from_arrays",
    "list_sources",
    "load_data",
]
