"""The predicted class of each example: its confidence, and whether it is the label.

All that calibration errors and risk-coverage need of [n, classes] probabilities.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics.examples import Mask, examples, nan_if_invalid
from byov_jax.evaluation.metrics.scores import is_in_top_k

AnyArray = Array | np.ndarray


class TopLabels(NamedTuple):
    """The predictions of the most probable classes; of equally probable ones the lower is predicted.

    Attributes:
      confidence: [n], the highest probability.
      correct: [n], 1 where its class is the label, else 0.
      counted: [n], which rows count.
      invalid: whether a row that counts has invalid probabilities or label.
    """

    confidence: Float[AnyArray, "n"]
    correct: Float[AnyArray, "n"]
    counted: Bool[AnyArray, "n"]
    invalid: Bool[AnyArray, ""]

    def or_nan(self, result: Any) -> Any:
        """Return the result, a tree, or NaN for all of it if a row is invalid or none counts."""
        return nan_if_invalid(result, jnp.asarray(self.invalid), jnp.asarray(self.counted))


def top_labels(probs: AnyArray, labels: AnyArray, where: Mask) -> TopLabels:
    """Return the predicted classes of predictions that have passed `checks.predictions`.

    Outside jit they are reduced on the host: argmax is ten times as fast there as with XLA on a CPU, and a
    NumPy array is not copied to the device. The results are bitwise the same.
    """
    if checks.are_concrete(probs, labels, where):
        return _on_the_host(np.asarray(probs), np.asarray(labels), where)
    return _on_the_device(probs, labels, where)


def _on_the_host(probs: np.ndarray, labels: np.ndarray, where: Mask) -> TopLabels:
    dtype = jax.dtypes.canonicalize_dtype(jnp.promote_types(probs.dtype, jnp.float32))
    probs = probs.astype(dtype, copy=False)  # before argmax: probabilities may be equal in 32 bits
    predicted = np.argmax(probs, axis=1)
    return TopLabels(
        confidence=np.take_along_axis(probs, predicted[:, None], axis=1)[:, 0],
        correct=(predicted == labels).astype(dtype),
        counted=np.ones(len(probs), bool) if where is None else np.asarray(where),
        invalid=np.zeros((), bool),
    )


@jax.jit
def _on_the_device(probs, labels, where) -> TopLabels:
    rows = examples(probs, labels, where)
    correct = is_in_top_k(1, rows.probs, rows.labels)
    return TopLabels(jnp.max(rows.probs, axis=1), correct, rows.counted, rows.invalid)
