"""A data set in memory: both splits, their labels and the names of the classes, if it has any."""

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


class UnlabelledImages(NamedTuple):
    """Images alone: `Images` whose labels are None."""

    image: UInt8[np.ndarray, "n height width channels"]
    label: None = None


class Dataset(NamedTuple):
    """Both splits, the names of the classes, and in a few words how it was made."""

    train: Images
    test: Images
    classes: tuple[str, ...]
    description: str = ""


class Unlabelled(NamedTuple):
    """Both splits of a data set without labels: the attributes of a `Dataset`, and no classes."""

    train: UnlabelledImages
    test: UnlabelledImages
    classes: tuple[()] = ()
    description: str = ""
