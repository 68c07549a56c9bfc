"""A labelled data set in memory: images, labels and the names of the classes."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8


class Images(NamedTuple):
    """Images with their labels.

    Attributes:
      image: values 0 to 255, [n, height, width, channels].
      label: index into the names of the classes, [n].
    """

    image: UInt8[np.ndarray, "n height width channels"]
    label: Int32[np.ndarray, "n"]


class Dataset(NamedTuple):
    """Both splits and the names of the classes."""

    train: Images
    test: Images
    classes: tuple[str, ...]
