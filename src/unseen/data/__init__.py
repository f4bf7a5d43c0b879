"""Data sets of several domains: named benchmarks, files of any registered format, arrays; transforms."""

from unseen.data.dataset import Batch, Column, DataSet, Indices, JoinedSamples, Samples, from_arrays
from unseen.data.formats import FORMATS, DataFormat
from unseen.data.sources import SOURCES, DataRequest, Source, list_sources, load_data

__all__ = [
    "FORMATS",
    "SOURCES",
    "Batch",
    "Column",
    "DataFormat",
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
