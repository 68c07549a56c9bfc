"""Train BYOV on the embedded images for a short while and see what it learned.

    python -m experiments.quickstart [--steps=300] [--seed=0]

A small vision transformer learns from 10,000 Fashion-MNIST images without their labels. A linear classifier
on its frozen features is then compared with the same classifier on raw pixels and on the features of the
untrained network.
"""

import argparse
import sys
import time

import jax
import numpy as np
from tqdm import tqdm

import byov_jax as byov
from byov_jax import images, networks
from byov_jax.data import fashion_mnist
from byov_jax.evaluate import probe
from byov_jax.train import loop

BATCH = 128
VIEWS = images.small_gray()


def main() -> None:
    """Trains, probes and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random (default: 0)")
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error(f"--steps={arguments.steps} must be at least 2")

    start = time.perf_counter()
    data = fashion_mnist.load()
    student = networks.Student(
        networks.ViT(patch=7, width=128, depth=3, heads=4, pool="mean", positions="sincos"),
        networks.MLP((512, 64)),
        networks.MLP((512, 64)),
    )
    method = byov_method(student, len(data.train.image), arguments.steps)
    print(
        f"BYOV on {len(data.train.image):,} unlabelled images, {arguments.steps} steps of {BATCH}", flush=True
    )
    state = train(method, data.train, arguments.steps, arguments.seed)

    batch = byov.Batch(data.train.image[:BATCH])
    untrained = method.init(jax.random.split(jax.random.key(arguments.seed))[0], batch)
    rows = {
        "raw pixels": (flatten(data.train.image), flatten(data.test.image)),
        "untrained network": features(student, untrained, data),
        "BYOV, posterior mean": features(student, state, data),
    }
    print(f"\nlinear probe, {len(data.test.label):,} test images")
    for name, (train_features, test_features) in rows.items():
        fitted = probe.fit(train_features, data.train.label, classes=len(data.classes))
        print(f"  {name:22} {probe.score(fitted, test_features, data.test.label):6.2%}", flush=True)
    show_posterior(state.posterior)
    print(f"\n{time.perf_counter() - start:.0f} s, seed {arguments.seed}")


def byov_method(student: networks.Student, dataset_size: int, steps: int) -> byov.methods.Method:
    """The recipe: N(0, I) prior, KL annealed from 0 to 0.3 per weight."""
    return byov.methods.byov(
        student,
        byov.optimizer.adamw(byov.schedules.warmup_cosine(2e-3, steps // 10, steps), log_var_multiplier=20.0),
        views=VIEWS,
        dataset_size=dataset_size,
        beta=byov.schedules.cosine(0.0, 0.3, steps),
        tau=byov.schedules.ema_cosine(0.97, steps),
    )


def train(method: byov.methods.Method, images: fashion_mnist.Images, steps: int, seed: int) -> byov.State:
    """Runs the loop behind a progress bar, or plain lines where there is no terminal."""
    terminal = sys.stderr.isatty()
    bar = tqdm(total=steps, unit="step", disable=not terminal)
    data = byov.Batch(images.image)
    for progress in loop.run(
        method, data, seed=seed, steps=steps, batch_size=BATCH, report_every=10 if terminal else 100
    ):
        info = progress.info
        line = (
            f"loss {info.loss:.3f}  cosine {info.cosine:.3f}  KL/weight {info.kl_per_weight:.3f}  "
            f"beta {info.beta:.3f}  embedding std {info.embedding_std:.3f}"
        )
        if terminal:
            bar.set_postfix_str(line)
            bar.update(progress.step - bar.n)
        else:
            print(f"step {progress.step:5}  {line}", flush=True)
    bar.close()
    return progress.state


def features(student: networks.Student, state: byov.State, data: fashion_mnist.FashionMnist):
    """Encoder features [n, width] of the training and test images at the posterior mean."""
    variables = {"params": byov.posterior.mean(state.posterior), **state.stats}

    @jax.jit
    def encode(batch):
        x = images.normalize(images.to_float(batch), VIEWS.mean, VIEWS.std)
        return student.apply(variables, x, method="project")[0]

    def encode_all(image):
        return np.concatenate([encode(part) for part in np.split(image, len(image) // 500)])

    return encode_all(data.train.image), encode_all(data.test.image)


def flatten(image: np.ndarray) -> np.ndarray:
    """uint8 [n, 28, 28, 1] -> float32 [n, 784] in [0, 1]."""
    return image.reshape(len(image), -1).astype(np.float32) / 255.0


def show_posterior(q: byov.Posterior) -> None:
    """Prints sigma and signal-to-noise ratio of a few layers."""
    layers = byov.layer_statistics(q)
    kernels = [path for path in layers if path.endswith("kernel")]
    print(f"\n{'posterior':42} {'mean sigma':>11} {'mean SNR':>9}")
    for path in kernels:
        print(f"  {path:40} {layers[path].sigma_mean:11.5f} {layers[path].snr_mean:9.2f}")


if __name__ == "__main__":
    main()
