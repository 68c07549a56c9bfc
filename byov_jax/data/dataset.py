"""A data set: both splits, in memory or decoded as needed, their labels and the names of the classes."""

from typing import Any, NamedTuple

Pixels = Any
"""uint8 [n, height, width, channels]: a NumPy array, or a `Decoded`, which looks like one."""


class Images(NamedTuple):
    """Images with their labels.

    Attributes:
      image: values 0 to 255, [n, height, width, channels].
      label: index into the names of the classes, int32 [n]; a `decoded.Labels` looks like one.
    """

    image: Pixels
    label: Any


class UnlabelledImages(NamedTuple):
    """Images alone: `Images` whose labels are None."""

    image: Pixels
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
