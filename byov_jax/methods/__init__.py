"""The training algorithm: one step, and its four uses BYOL, BYOV, supervised and supervised BBB."""

from byov_jax.methods.method import ONE_DEVICE as ONE_DEVICE
from byov_jax.methods.method import Method as Method
from byov_jax.methods.method import byol as byol
from byov_jax.methods.method import byov as byov
from byov_jax.methods.method import supervised as supervised
from byov_jax.methods.method import supervised_bbb as supervised_bbb
