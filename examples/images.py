"""Fashion-MNIST, or scikit-learn's digits if it is not available, as NumPy arrays.

All ranks have the same data.
"""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import byteps
from byteps.numpy import push_pull

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / ".data" / "fashion-mnist"
Array = np.ndarray[Any, Any]


class Images(NamedTuple):
    """Images [n, height, width], float32 from 0 to 1, and their classes [n], int64."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load_images(use_digits: bool) -> Images:
    """Returns Fashion-MNIST if all machines have it and `use_digits` is false, else the digits.

    All ranks must call it.

    The digits, 1,797 images of 8 x 8, come with scikit-learn's wheel.
    """
    if not use_digits and byteps.local_rank() == 0 and not IMAGES.is_dir():
        fetched = subprocess.run([ROOT / "tools" / "get_fashion_mnist.sh"], capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            print(f"Fashion-MNIST cannot be had: {fetched.stderr.strip()[-300:]}", flush=True)
    byteps.barrier()
    here = np.array([IMAGES.is_dir() and not use_digits], np.uint8)
    everywhere = bool(push_pull(here, name="images are here", op=byteps.Min)[0])
    if byteps.rank() == 0:
        which = "Fashion-MNIST" if everywhere else "the digits of scikit-learn"
        print(f"{byteps.size()} ranks train on {which}", flush=True)
    return _fashion_mnist() if everywhere else _digits()


def _fashion_mnist() -> Images:
    def read(name: str, header_bytes: int) -> Array:
        return np.frombuffer(gzip.decompress((IMAGES / f"{name}-ubyte.gz").read_bytes()), np.uint8, offset=header_bytes)

    parts = []
    for name in ("train", "t10k"):
        parts.append(read(f"{name}-images-idx3", 16).reshape(-1, 28, 28).astype(np.float32) / 255)
        parts.append(read(f"{name}-labels-idx1", 8).astype(np.int64))
    return Images(*parts)


def _digits() -> Images:
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images, labels = loaded.images.astype(np.float32) / 16, loaded.target.astype(np.int64)
    return Images(images[:1440], labels[:1440], images[1440:], labels[1440:])
