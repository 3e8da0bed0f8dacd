"""What reads parts of files of one kind, in an executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from warren.workers.spark.files.directory import Directory, Part
from warren.workers.spark.files.options import FilesOptions


class PartReader(ABC):
    """Makes rows of parts of files, in batches of the schema `wanted`."""

    def __init__(self, directory: Directory, options: FilesOptions, wanted: pa.Schema) -> None:
        self.directory = directory
        self.options = options
        self.wanted = wanted

    @abstractmethod
    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a part. Raises StoreError, FormatVersionError."""
