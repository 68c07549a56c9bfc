"""Write netcal_reference.json: netcal's calibration errors of every case of cases.py.

In an environment with netcal, which needs torch: python tests/evaluation/metrics/make_netcal_reference.py
"""

import importlib.metadata
import json
import pathlib

import numpy as np
from cases import BINS, COUNT, N, case
from netcal.metrics import ACE, ECE, MCE


def values(seed: int) -> list[float]:
    """ECE, MCE and ACE in bins of equal width; if all confidences differ, ECE in bins of equal mass."""
    probs, labels = case(seed)
    confidence, hit = probs.max(axis=1), np.argmax(probs, axis=1) == labels
    # Bins of netcal hold their lower edge, those of byov_jax their upper: mirrored, they are the same.
    mirrored = (1 - confidence)[:, None], 1 - hit.astype(int)
    found = [metric(BINS, detection=True).measure(*mirrored) for metric in (ECE, MCE, ACE)]
    if len(np.unique(confidence)) == N:  # netcal keeps equal confidences in one bin
        found.append(ECE(BINS, equal_intervals=False, detection=True).measure(*mirrored))
    return [round(float(value), 9) for value in found]


if __name__ == "__main__":
    reference = {"netcal": importlib.metadata.version("netcal"), "values": list(map(values, range(COUNT)))}
    path = pathlib.Path(__file__).with_name("netcal_reference.json")
    path.write_text(json.dumps(reference).replace("], [", "],\n[") + "\n")
