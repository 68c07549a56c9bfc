"""Every measurement of the paper on a trained model: `evaluate`, its parts, and its results."""

from byov_jax.evaluation.suite.context import Options as Options
from byov_jax.evaluation.suite.evaluator import evaluate as evaluate
from byov_jax.evaluation.suite.parts import PARTS as PARTS
from byov_jax.evaluation.suite.results import EvaluationResult as EvaluationResult
