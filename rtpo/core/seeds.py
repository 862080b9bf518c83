"""Named random streams from one root seed: the same names give the same numbers in every process."""

from hashlib import blake2b

import numpy as np


def stream_seed(root: int, *names: object) -> int:
    """A 63-bit seed for the stream with these names."""
    digest = blake2b("/".join(str(name) for name in (root, *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(root: int, *names: object) -> np.random.Generator:
    return np.random.default_rng(stream_seed(root, *names))
