import numpy as np
import pytest

from stoix_like import cli
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import read_data, write_data
from support.recorded_data import make_data
from support.trained_runs import train_pendulum


def test_data_prints_what_a_file_holds_and_draws_its_returns(tmp_path, capsys):
    write_data(tmp_path / "data.npz", make_data())
    cli.main(["data", str(tmp_path / "data.npz"), "--plot", str(tmp_path / "returns.svg")])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["environment", "suite/Arm-v0"],
        ["recorded", "by             sac/ff_sac (best)"],
        ["steps", "5 in 2 episodes of 2 to 3 steps"],
        ["ends", "1 terminated, 1 truncated"],
        ["return", "mean 0.00, least -3.00, largest 3.00"],
        ["observations/joint/pos", "float32 [2], 0.00 to 13.00"],
        ["observations/touch", "int32 [], 0.00 to 2.00"],
        ["actions", "float32 [1], -2.00 to 1.33"],
        ["rewards", "float32 [], -1.00 to 2.00"],
        ["written", f"to {tmp_path / 'returns.svg'}"],
    ]
    assert "<svg" in (tmp_path / "returns.svg").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("data {tmp}/missing.npz", "file={tmp}/missing.npz: there is no such file: use an .npz file"),
        ("data {tmp}/missing.npz --plot a.csv", "--plot a.csv: the ending must be one of .png"),
        ("collect {tmp} --out {tmp}/data.npz --policy worst", "policy=worst is unknown"),
        ("collect {tmp} --out {tmp}/data.npz", "holds no run"),
        ("collect {tmp} --out {tmp}/data.csv", "data.csv: a data set is a file that ends in .npz"),
        ("collect {tmp} --out {tmp}/data.npz --steps 1.5", "invalid count value: '1.5'"),
        ("collect {tmp} --out {tmp}/data.npz --steps inf", "invalid count value: 'inf'"),
    ],
)
def test_wrong_arguments_are_refused(command, message, tmp_path, refused):
    assert message.format(tmp=tmp_path) in refused(*command.format(tmp=tmp_path).split())


def test_a_file_without_steps_can_be_looked_at(tmp_path, capsys):
    empty = [np.zeros((0, *x.shape[1:]), x.dtype) for x in make_data()[2:]]
    observation = make_data().observation._replace(agent_view=np.zeros((0, 2), np.float32))
    write_data(tmp_path / "data.npz", DataSet(DataHeader(), observation, *empty))
    cli.main(["data", str(tmp_path / "data.npz")])
    assert "0 in 0 episodes of no step" in capsys.readouterr().out


@pytest.mark.slow
def test_collect_takes_its_options(tmp_path_factory, tmp_path, capsys):
    run, out = train_pendulum(tmp_path_factory), tmp_path / "data.npz"
    options = "--steps 4e1 --policy mix:0.5 --noise 0.1 --seed 3 --num-envs 2 --member best --trust"
    cli.main(["collect", str(run), "--out", str(out), *options.split()])
    assert f"written to {out}" in capsys.readouterr().out
    header = read_data(out).header
    assert (header.steps, header.policy) == (40, "mix:0.5+noise:0.1")
    assert header.notes[0].endswith("seed 3")
