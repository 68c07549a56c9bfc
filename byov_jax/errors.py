"""The exceptions that users meet. Each message is one line that says what is wrong and what to do."""


class ConfigError(ValueError):
    """A config that cannot be trained: the message names the key, its value and what is allowed."""


class RunError(ValueError):
    """A run directory, or an argument of a command, that cannot be used."""


class TrainingError(RuntimeError):
    """A training that cannot continue, or whose state cannot be saved."""


class ImageError(ValueError):
    """An image that cannot be read.

    Attributes:
      name: the image's name in its source.
      reason: what is wrong with it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # picklable, so that it can leave a worker process
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name} cannot be read as an image ({self.reason})"
