"""Generators named by their purpose, so that every draw can be repeated without saved state."""

import hashlib
import json

import numpy as np


def generator(*parts: object) -> np.random.Generator:
    """Return a generator for these words and numbers, such as ("mask", seed, epoch, batch)."""
    name = json.dumps([str(part) for part in parts])
    return np.random.default_rng(list(hashlib.sha256(name.encode()).digest()))


def derive_seed(*parts: object) -> int:
    """Return a whole number below 2**63, for libraries that take a seed."""
    return int(generator(*parts).integers(2**63))
