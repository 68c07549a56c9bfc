"""Results of the paper as sentences for captions, which add whether a run agrees."""

from byov_jax.report.formatting import signed
from byov_jax.report.runs import Run

THE_PAPER = "The paper (ViT-B/16, ImageNet)"
GAINS = {"ece": 2.83, "reliability": 1.03, "top1": -0.4, "top5": -0.22, "resolution": -0.57}
"""Of the best BYOV over BYOL, percentage points, positive is better."""

BEST = (
    f"{THE_PAPER} reports for its best BYOV, compared with BYOL: ECE {signed(GAINS['ece'])}, reliability "
    f"{signed(GAINS['reliability'])}, top-1 {signed(GAINS['top1'])}, top-5 {signed(GAINS['top5'])}, "
    f"resolution {signed(GAINS['resolution'])} points."
)
DRAWS = (
    "It reports +0.34 points top-1 from averaging draws instead of taking the mean weights (prior N(0, I), "
    "β 0→0.3)."
)
PARTIAL = (
    "Its top-1 at N(0, I), β 0→1 was 73.68% when the patch embedding is a point estimate (no_conv) and "
    "73.62% when the norms are as well (linear_only); that of BYOL was 75.97%."
)
LAYERS = f"{THE_PAPER} follows the same four quantities for each prior and each β."
RELIABILITY = f"{THE_PAPER} reports the ECE of its best BYOV {GAINS['ece']} points below that of BYOL."
SHIFT = (
    f"{THE_PAPER} reports {signed(GAINS['ece'])} points ECE and {signed(GAINS['reliability'])} points "
    "reliability on clean test images, and gains under shift as well: +2.4 and +1.2 for salt and pepper "
    "noise."
)
PRUNING = f"{THE_PAPER} reports up to 12% better accuracy by SNR than by magnitude with a 25% sparser model."
CONVERGENCE = f"{THE_PAPER} draws the same curves for K = 1 to 50 with 50 repeats."
LATENT = f"{THE_PAPER} measures the same three outputs with 50 draws."
ALIGNMENT = f"{THE_PAPER} reports, with 1000 draws, a distribution that a Gaussian fits well."
DISAGREES = "unlike in the paper"


def compares(run: Run, baseline: Run) -> bool:
    """Whether the pair is BYOV and BYOL, which the paper compares."""
    return run.is_byov and baseline.is_byol
