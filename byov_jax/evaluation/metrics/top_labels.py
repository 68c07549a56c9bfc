"""The predicted class of each example: its confidence, and whether it is the label.

Calibration errors and risk-coverage need no more than that of [n, classes] probabilities.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from byov_jax.evaluation import checks
from byov_jax.evaluation.metrics.examples import Mask, examples, nan_unless_measured
from byov_jax.evaluation.metrics.scores import is_in_top_k

AnyArray = Array | np.ndarray


class TopLabels(NamedTuple):
    """The predictions of the most probable classes; of equally probable ones the lower is predicted.

    Attributes:
      confidence: [n], the highest probability.
      correct: [n], 1 where its class is the label, else 0.
      counted: [n], which rows count.
      broken: whether a row that counts has no probabilities or no possible label.
    """

    confidence: Float[AnyArray, "n"]
    correct: Float[AnyArray, "n"]
    counted: Bool[AnyArray, "n"]
    broken: Bool[AnyArray, ""]

    def or_nan(self, result: Any) -> Any:
        """Return the result, a tree, or NaN for all of it if a row is broken or none counts."""
        return nan_unless_measured(result, jnp.asarray(self.broken), jnp.asarray(self.counted))


def top_labels(probs: AnyArray, labels: AnyArray, where: Mask) -> TopLabels:
    """Return the predicted classes of predictions that `checks.predictions` has seen.

    Values that it could read are reduced on the host as well: there argmax is ten times as fast as XLA's on a
    CPU, and an array of NumPy is not copied to the device. The results are the same to the last bit.
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
        broken=np.zeros((), bool),
    )


@jax.jit
def _on_the_device(probs, labels, where) -> TopLabels:
    rows = examples(probs, labels, where)
    correct = is_in_top_k(1, rows.probs, rows.labels)
    return TopLabels(jnp.max(rows.probs, axis=1), correct, rows.counted, rows.broken)
