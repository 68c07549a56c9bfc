"""Accuracy, calibration and uncertainty, of class probabilities and of a representation.

One-shot functions, and an accumulator for probabilities.
"""

from byov_jax.evaluation.metrics.binning import ReliabilityBins as ReliabilityBins
from byov_jax.evaluation.metrics.binning import adaptive_ece as adaptive_ece
from byov_jax.evaluation.metrics.binning import ece as ece
from byov_jax.evaluation.metrics.binning import mce as mce
from byov_jax.evaluation.metrics.binning import reliability_bins as reliability_bins
from byov_jax.evaluation.metrics.calibration import Calibration as Calibration
from byov_jax.evaluation.metrics.calibration import CalibrationReport as CalibrationReport
from byov_jax.evaluation.metrics.ranking import RiskCoverage as RiskCoverage
from byov_jax.evaluation.metrics.ranking import aupr as aupr
from byov_jax.evaluation.metrics.ranking import auroc as auroc
from byov_jax.evaluation.metrics.ranking import fpr95 as fpr95
from byov_jax.evaluation.metrics.ranking import risk_coverage as risk_coverage
from byov_jax.evaluation.metrics.retrieval import crop_test as crop_test
from byov_jax.evaluation.metrics.retrieval import r_auroc as r_auroc
from byov_jax.evaluation.metrics.retrieval import recall_at_1 as recall_at_1
from byov_jax.evaluation.metrics.scores import BrierDecomposition as BrierDecomposition
from byov_jax.evaluation.metrics.scores import brier as brier
from byov_jax.evaluation.metrics.scores import brier_decomposition as brier_decomposition
from byov_jax.evaluation.metrics.scores import nll as nll
from byov_jax.evaluation.metrics.scores import top_k as top_k
from byov_jax.evaluation.metrics.uncertainty import entropy as entropy
from byov_jax.evaluation.metrics.uncertainty import mutual_information as mutual_information
from byov_jax.evaluation.metrics.uncertainty import predictive_std as predictive_std

__all__ = [
    "BrierDecomposition",
    "Calibration",
    "CalibrationReport",
    "ReliabilityBins",
    "RiskCoverage",
    "adaptive_ece",
    "aupr",
    "auroc",
    "brier",
    "brier_decomposition",
    "crop_test",
    "ece",
    "entropy",
    "fpr95",
    "mce",
    "mutual_information",
    "nll",
    "predictive_std",
    "r_auroc",
    "recall_at_1",
    "reliability_bins",
    "risk_coverage",
    "top_k",
]
