"""Generators that are named by what they are for, so that every draw can be repeated without a state being kept."""

import hashlib
import json

import numpy as np


def generator(*parts: object) -> np.random.Generator:
    """A Generator for these words and numbers, such as ("mask", seed, pass, batch): the same parts give the same stream."""
    return np.random.default_rng(
        list(hashlib.sha256(json.dumps([str(p) for p in parts]).encode()).digest())
    )


def derive_seed(*parts: object) -> int:
    """One whole number below 2**63, for libraries that take a seed."""
    return int(generator(*parts).integers(2**63))
