"""Exceptions that users see: each message is one line with the problem and its remedy."""


class ConfigError(ValueError):
    """An invalid config: the message names the key, its value and the allowed values."""


class RunError(ValueError):
    """An unusable run directory or command-line argument."""


class TrainingError(RuntimeError):
    """Training cannot continue, or its state cannot be saved."""


class ImageError(ValueError):
    """An unreadable image.

    Attributes:
      name: the image's name in its source.
      reason: why it is unreadable.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both arguments, so that it can be pickled
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name} cannot be read as an image ({self.reason})"


def reason(error: BaseException) -> str:
    """Return an error's message as one line, without the file name that an OSError carries."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def printable(name: object) -> str:
    """Return a name as text, quoted and escaped if it holds characters such as line breaks."""
    return str(name) if str(name).isprintable() else repr(str(name))
