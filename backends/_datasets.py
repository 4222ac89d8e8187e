"""A table of Hugging Face datasets as records. The package is heavy: imported only where it is needed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets  # pyright: ignore[reportMissingImports] - an extra
import pyarrow as pa  # pyright: ignore[reportMissingImports] - it comes with datasets

from backends.prompts._records import Records

_FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
_SAVED = ("dataset_info.json", "dataset_dict.json")  # what save_to_disk leaves in a folder
_DIGESTED = 1000  # rows hashed at a time


class Table:
    """The rows of one split.

    Args:
        rows: A ``datasets.Dataset``.
        name: As the job names it.
    """

    def __init__(self, rows: Any, name: str) -> None:
        self._rows = rows
        self._name = name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._rows.column_names)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Mapping[str, Any]:
        """Return a row; see ``Records.read``."""
        return self._rows[index]

    def where(self, index: int) -> str:
        """Return the number of the row, from 0."""
        return f"{self._name}, row {index}"

    def digest(self) -> str:
        """Return a digest of what the rows hold, however the table is cached or chunked."""
        digest = hashlib.sha256()
        for rows in self._rows.with_format("arrow").iter(batch_size=_DIGESTED):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema.remove_metadata()) as stream:
                stream.write_table(rows.replace_schema_metadata().combine_chunks())
            digest.update(sink.getvalue())
        return digest.hexdigest()


_: type[Records] = Table


def load_table(path: str, local: Path, subset: str | None, split: str) -> Table:
    """Load a split: of a file, of a folder, or of a dataset by its Hugging Face name.

    Args:
        path: As the job names it.
        local: Where that is, if it is a file or folder.
        subset: Configuration of the dataset.
        split: ``train``, ``test[:100]``.

    Raises:
        Exception: Whatever datasets, pyarrow and the hub raise where there is no such thing.
    """
    datasets.disable_progress_bars()
    if local.is_file():
        if local.suffix not in _FORMATS:
            raise ValueError(f"a file ends in {', '.join(_FORMATS)}, not in '{local.suffix}'")
        options: dict[str, Any] = {"delimiter": "\t"} if local.suffix == ".tsv" else {}
        rows = datasets.load_dataset(_FORMATS[local.suffix], data_files=str(local), split=split, **options)
    elif any((local / name).is_file() for name in _SAVED):
        saved = datasets.load_from_disk(str(local))
        rows = saved[split] if isinstance(saved, datasets.DatasetDict) else saved
    else:
        rows = datasets.load_dataset(str(local) if local.is_dir() else path, subset, split=split)
    return Table(rows, path)
