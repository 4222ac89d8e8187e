"""The random state of this process in a file: that of torch, of Python and of numpy.

Streams of the product's own follow from the run's seed. The global ones are for what users and libraries draw.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_CPU = "cpu"


class RandomState(NamedTuple):
    """Of the global generators.

    Attributes:
        torch: The state of each device, ``cpu`` and ``cuda:0`` and so on.
        python: As ``random.setstate`` takes it.
        numpy: As ``numpy.random.set_state`` takes it.
    """

    torch: dict[str, Tensor]
    python: tuple[Any, ...]
    numpy: dict[str, Any]


def capture() -> RandomState:
    """Return the state; that of accelerators only if this process has used them."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    devices = {f"cuda:{number}": state for number, state in enumerate(cuda)}
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is meant
    return RandomState({_CPU: torch.get_rng_state(), **devices}, random.getstate(), state)


def restore(state: RandomState) -> None:
    """Let the generators go on from ``state``; accelerators that this process does not have are left out."""
    torch.set_rng_state(state.torch[_CPU])
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            if (held := state.torch.get(f"cuda:{number}")) is not None:
                torch.cuda.set_rng_state(held, number)
    random.setstate(state.python)
    np.random.set_state(state.numpy)  # noqa: NPY002 - as above


def write(state: RandomState, file: Path) -> None:
    """Write ``state``."""
    words = {"python": json.dumps(state.python), "numpy": json.dumps(state.numpy, default=np.ndarray.tolist)}
    save_file(state.torch, file, metadata=words)


def read(file: Path) -> RandomState:
    """Read what ``write`` wrote, and try it on generators of no consequence.

    Raises:
        OSError, SafetensorError, KeyError, RuntimeError, TypeError, ValueError: It cannot be restored.
    """
    with safe_open(file, framework="pt") as opened:
        words = opened.metadata()
        states = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 - no mapping
    version, internal, gauss = json.loads(words["python"])
    state = RandomState(states, (version, tuple(internal), gauss), json.loads(words["numpy"]))
    torch.Generator().set_state(state.torch[_CPU])
    random.Random().setstate(state.python)
    np.random.RandomState().set_state(state.numpy)
    return state
