"""metrics.jsonl and posterior.jsonl: complete lines, none after the checkpoint, and valid JSON."""

import json
import math

import pytest

from byov_jax import files
from byov_jax.training import run_directory
from byov_jax.training.metrics_log import MetricsLog


def write(run, steps):
    log = MetricsLog(run, step=-1)
    for step in steps:
        log.metrics({"step": step, "loss": 1.0 / (step + 1)})
        log.posterior({"step": step, "layers": {}})
    log.close()


def lines(run, name=run_directory.METRICS):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def test_it_goes_on_after_the_step_that_was_saved(tmp_path):
    write(tmp_path, [0, 10, 20, 30])
    log = MetricsLog(tmp_path, step=20)
    assert log.last[run_directory.METRICS] == {"step": 20, "loss": 1.0 / 21}
    log.metrics({"step": 25, "loss": 0.5})
    assert [line["step"] for line in lines(tmp_path)] == [0, 10, 20, 25]
    assert [line["step"] for line in lines(tmp_path, run_directory.POSTERIOR)] == [0, 10, 20]


def test_a_run_that_begins_again_keeps_no_line(tmp_path):
    write(tmp_path, [0, 10])
    assert MetricsLog(tmp_path, step=-1).last == {run_directory.METRICS: None, run_directory.POSTERIOR: None}
    assert lines(tmp_path) == []


@pytest.mark.parametrize("torn", ['{"step": 30, "lo', "[1, 2]", '{"loss": 1}', '{"step": "x"}'])
def test_a_torn_last_line_goes(tmp_path, torn):
    write(tmp_path, [0, 10])
    with (tmp_path / run_directory.METRICS).open("a") as file:
        file.write(torn)
    assert [line["step"] for line in files.read_jsonl(tmp_path / run_directory.METRICS)] == [0, 10]
    MetricsLog(tmp_path, step=50).metrics({"step": 51})
    assert [line["step"] for line in lines(tmp_path)] == [0, 10, 51]


def test_what_is_not_finite_becomes_null(tmp_path):
    MetricsLog(tmp_path, step=-1).metrics({"step": 1, "loss": math.nan, "inner": {"kl": math.inf}, "lr": 0.1})
    assert lines(tmp_path) == [{"step": 1, "loss": None, "inner": {"kl": None}, "lr": 0.1}]


@pytest.mark.filterwarnings("ignore")  # of protobuf, on import
def test_tensorboard_sees_every_number(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    log = MetricsLog(tmp_path, step=-1, tensorboard=True)
    log.metrics({"step": 7, "epoch": 0.5, "loss": 0.25, "cosine": None})
    log.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    data, found = file.read_bytes(), {}
    while data:  # length, checksum, event, checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found |= {value.tag: (event.step, value.simple_value) for value in event.summary.value}
        data = data[16 + size :]
    assert found == {"loss": (7, 0.25)}
