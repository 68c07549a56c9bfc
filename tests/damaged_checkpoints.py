"""Three valid checkpoints, ways to damage them, and checks of what a run does with the damage."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from trainings import assert_same_state

from byov_jax.checkpoints import checkpointer, integrity, store

STEPS = (3, 6, 9)
LIKE = {"step": jnp.zeros((), jnp.int32), "weights": {"kernel": jnp.zeros((40, 30)), "bias": jnp.zeros(30)}}


def state(step):
    rng = np.random.default_rng(step)
    weights = {"kernel": rng.normal(size=(40, 30)), "bias": rng.normal(size=30)}
    return {"step": jnp.int32(step), "weights": jax.tree.map(jnp.float32, weights)}


def save(folder):
    for step in STEPS:
        checkpointer.save(folder, step, state(step))


def flip(file, bit=0.5):
    """Flips one bit, at a fraction of the file."""
    content = bytearray(file.read_bytes())
    place = int(bit * 8 * len(content))
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)


def seal(file, body):
    """Writes a manifest with a valid checksum of itself."""
    file.write_text(integrity.manifest_text({key: value for key, value in body.items() if key != "sha256"}))


def contents(folder):
    """The checksums of all files below a folder; links are left out."""
    files = (file for file in folder.rglob("*") if file.is_symlink() or file.is_file())
    return sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files if not file.is_symlink())


def resume(folder):
    """Restores as a training does; returns the state and the warnings."""
    warnings = []
    found = checkpointer.restore_newest(folder, LIKE, warn=warnings.append)
    return found, warnings


def assert_is(found, step):
    assert_same_state(jax.device_get(found), jax.device_get(state(step)))


def assert_survived(folder, message):
    """The last step is quarantined with one warning, and the one before is used; a reader moves nothing."""
    names = sorted(entry.name for entry in folder.iterdir())
    before = contents(folder)
    assert_is(checkpointer.restore_newest(folder, LIKE), 6)
    assert sorted(entry.name for entry in folder.iterdir()) == names

    found, warnings = resume(folder)
    assert_is(found, 6)
    (text,) = warnings
    assert text.startswith(f"checkpoint {folder / '9'} failed verification (")
    assert message in text
    assert text.endswith(f"; moved to {folder / 'set_aside' / '9'}")
    assert "\n" not in text
    assert contents(folder) == before
    assert store.steps(folder) == [3, 6]

    assert_is(resume(folder)[0], 6)  # without a second warning
    assert resume(folder)[1] == []
    checkpointer.save(folder, 9, state(9))  # the step can be saved again
    assert_is(resume(folder)[0], 9)
