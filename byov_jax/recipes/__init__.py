"""The configs that are shipped: each module has `get_config(variant)`, and is a name for `--config`."""

NAMES = ("quickstart", "fashion_mnist", "cifar10", "folder", "imagenet")
