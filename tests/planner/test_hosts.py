"""The synthetic photographs, and the decoding rate."""

import io

from PIL import Image

from byov_jax.planner import hosts


def test_photographs_have_the_size_of_imagenet_files():
    one, other = hosts.synthetic_photograph(0), hosts.synthetic_photograph(1)
    assert one != other
    with Image.open(io.BytesIO(one)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (500, 375))
    assert 60_000 < len(one) < 180_000


def test_a_rate_is_measured():
    assert hosts.decode_rate(64, 2, seconds=0.1) > 0.0
