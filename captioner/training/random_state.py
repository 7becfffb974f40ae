"""The random state of a process as tensors, so that a checkpoint can carry it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

RandomState: TypeAlias = dict[str, Tensor]


def get_random_state() -> RandomState:
    """The states of Python's, NumPy's and PyTorch's global generators.

    Returns:
        Tensors only, so that ``torch.load(weights_only=True)`` reads them. CUDA's generator of
        the current device is among them where there is one.
    """
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert version == 3
    assert name == "MT19937"
    state = {
        "python": torch.tensor(internal, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Put the generators back to where ``get_random_state`` found them.

    Args:
        state: What ``get_random_state`` returned. A CUDA state is left alone where there is no
            such device.
    """
    gauss = state["python_gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss[0] if gauss else None))
    position, has_gauss = state["numpy_position"].tolist()
    keys = state["numpy"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, state["numpy_gauss"].item()))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
