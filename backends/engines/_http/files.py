"""Weights in a folder that a server reads."""

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from backends.engines._http import adapters
from backends.models.lora import LoraConfig

SUMS = "sums.json"
"""CRC-32 of each file by name; a server that knows nothing of it passes it by."""

_FILE = "model.safetensors"
_CHUNK = 4 << 20


class WeightFiles:
    """One folder for each set of weights, under a root that is this object's alone. Blocks: any one thread.

    Args:
        root: Emptied first: what lies there is of an engine that is gone.
        lora: Which adapters weights are; None: a whole model.
    """

    def __init__(self, root: Path, lora: LoraConfig | None = None) -> None:
        self._root = root
        self._lora = lora
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def write(self, name: str, weights: Mapping[str, Any]) -> Path:
        """Write weights; the folder appears whole or not at all.

        Args:
            name: Of the folder.
            weights: Tensors by the names that the model's own checkpoints use.

        Raises:
            OSError: The disk refuses.
        """
        from safetensors.torch import save_file  # noqa: PLC0415 - torch is heavy

        aside, folder = self._root / f".{name}", self._root / name
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in weights.items()}
        file = _FILE
        if self._lora is not None:
            file = adapters.FILE
            described = adapters.description(self._lora, tensors)
            (aside / adapters.DESCRIPTION).write_bytes(msgspec.json.encode(described))
            tensors = {adapters.file_name(key): tensor for key, tensor in tensors.items()}
        save_file(tensors, aside / file, metadata={"format": "pt"})
        (aside / SUMS).write_bytes(msgspec.json.encode({file: crc_of(aside / file)}))
        aside.rename(folder)
        return folder

    def keep(self, name: str) -> None:
        """Remove all weights but some."""
        for folder in self._root.iterdir():
            if folder.name != name:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Remove all."""
        shutil.rmtree(self._root, ignore_errors=True)


def crc_of(file: Path) -> int:
    """Return the CRC-32 of a file's bytes."""
    total = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            total = zlib.crc32(chunk, total)
    return total
