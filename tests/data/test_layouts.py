import io
import json
import zipfile

import numpy as np
import pytest

from stoix_like.data.files import content_hash, open_data, read_data
from stoix_like.errors import ConfigError

OBSERVATIONS = np.arange(6.0)[:, None]
ACTIONS = np.arange(12.0).reshape(6, 2)


def write_ogbench(path, **more):
    """Write two trajectories of two steps, `[s0 s1 s2] [s3 s4 s5]`, as OGBench stores them."""
    terminals = np.array([0, 0, 1, 0, 0, 1], np.float64)
    np.savez_compressed(path, observations=OBSERVATIONS, actions=ACTIONS, terminals=terminals, qpos=ACTIONS, **more)


def fields(data):
    flags = [np.flatnonzero(x).tolist() for x in (data.terminated, data.truncated, ~data.valid)]
    return data.observation.agent_view[:, 0].tolist(), data.reward.tolist(), *flags


def test_ogbench_without_rewards(tmp_path):
    write_ogbench(tmp_path / "data.npz")
    data = read_data(tmp_path / "data.npz")
    assert fields(data) == ([0, 1, 2, 3, 4, 5], [0] * 6, [], [1, 4], [2, 5])
    assert data.action[:, 0].tolist() == [0, 2, 0, 6, 8, 0]
    assert data.action.dtype == data.observation.agent_view.dtype == data.reward.dtype == np.float32
    assert "no rewards, so they are zero" in data.header.notes[0]
    assert open_data(tmp_path / "data.npz").shapes["actions"].shape == (6, 2)


def test_ogbench_with_valids_marks_the_rows_before_ends_too(tmp_path):
    terminals, valids = np.array([0, 1, 1, 0, 1, 1]), np.array([1.0, 1, 0, 1, 1, 0])
    np.savez(tmp_path / "data.npz", observations=OBSERVATIONS, actions=ACTIONS, terminals=terminals, valids=valids)
    assert fields(read_data(tmp_path / "data.npz"))[2:] == ([], [1, 4], [2, 5])


def test_ogbench_solved_tasks_terminate(tmp_path):
    """The task is solved in step 0, where the trajectory is split, and in step 4, which is the last of its own."""
    rewards = np.array([0.0, -1, 7, -1, 0, 7])
    write_ogbench(tmp_path / "data.npz", rewards=rewards, masks=np.array([0, 1, 1, 1, 0, 1]))
    data = read_data(tmp_path / "data.npz")
    assert fields(data) == ([0, 1, 1, 2, 3, 4, 5], [0, 0, -1, 0, -1, 0, 0], [0, 5], [2], [1, 3, 6])
    assert [note.split(":")[0] for note in data.header.notes] == ["episodes are split where a task was solved"]
    write_ogbench(tmp_path / "end.npz", rewards=rewards, masks=np.array([1, 1, 1, 1, 0, 1]))
    assert fields(read_data(tmp_path / "end.npz"))[2:] == ([4], [1], [2, 5])


def write_d4rl(path, **more):
    """Write three episodes: one that terminates after two steps, one with a limit of two, and one without an end."""
    arrays = {
        "observations": OBSERVATIONS,
        "actions": ACTIONS,
        "rewards": np.arange(6.0),
        "terminals": [0, 1, 0, 0, 0, 0],
        "timeouts": [0, 0, 0, 1, 0, 0],
        **more,
    }
    present = {name: array for name, array in arrays.items() if array is not None}
    if path.suffix == ".npz":
        np.savez(path, **present)
        return
    with pytest.importorskip("h5py").File(path, "w") as file:
        for name, array in present.items():
            file[name] = array


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_d4rl_without_successors(tmp_path, ending):
    path = tmp_path / f"data.{ending}"
    write_d4rl(path)
    data = read_data(path)
    assert fields(data) == ([0, 1, 1, 2, 3, 4, 5], [0, 1, 0, 2, 0, 4, 0], [1], [3, 5], [2, 4, 6])
    assert "left out" in data.header.notes[0]
    file = open_data(path)
    assert file.shapes["observations"].shape == (7, 1)
    assert file.header == data.header
    assert file.read() is file.read()
    write_d4rl(tmp_path / "unclear.npz", timeouts=None, next_observations=OBSERVATIONS + 0.5)
    with pytest.raises(ConfigError, match="it has next_observations and no timeouts"):
        read_data(tmp_path / "unclear.npz")


def test_d4rl_with_successors(tmp_path):
    write_d4rl(tmp_path / "data.hdf5", next_observations=OBSERVATIONS + 0.5)
    data = read_data(tmp_path / "data.hdf5")
    assert data.observation.agent_view[:, 0].tolist() == [0, 1, 1.5, 2, 3, 3.5, 4, 5, 5.5]
    assert data.header.steps == 6


def test_d4rl_without_timeouts_is_refused(tmp_path):
    write_d4rl(tmp_path / "data.hdf5", timeouts=None)
    with pytest.raises(ConfigError, match=r"^system.data=.*data.hdf5: it has no timeouts"):
        read_data(tmp_path / "data.hdf5")
    (tmp_path / "wrong.hdf5").write_bytes(b"\x89HDF" + bytes(100))
    with pytest.raises(ConfigError, match="damaged, or of another layout"):
        read_data(tmp_path / "wrong.hdf5")


def write_minari(path):
    """Write two episodes of one and two steps as Minari does, with actions of two parts."""
    h5py = pytest.importorskip("h5py")
    (path / "data").mkdir(parents=True)
    (path / "data" / "metadata.json").write_text(json.dumps({"env_spec": '{"id": "Arm-v0"}', "algorithm_name": "PPO"}))
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        # By number, not by name.
        for number, steps in ((10, 2), (9, 1)):
            group = file.create_group(f"episode_{number}")
            group["observations/pos"] = np.full((steps + 1, 2), float(number))
            group["actions/_index_0"], group["actions/_index_1"] = np.ones(steps, np.int64), np.zeros((steps, 2))
            group["rewards"], group["infos/step_count"] = np.ones(steps), np.arange(steps + 1)
            group["terminations"] = group["truncations"] = np.arange(steps) == steps - 1


def test_minari(tmp_path):
    write_minari(tmp_path / "arm-v0")
    data = read_data(tmp_path / "arm-v0")
    assert data.observation.agent_view["pos"][:, 0].tolist() == [9, 9, 10, 10, 10]
    assert data.observation.step_count.tolist() == [0, 1, 0, 1, 2]
    assert data.action.tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert (data.header.environment, data.header.system, data.header.episodes) == ("Arm-v0", "PPO", 2)
    assert np.flatnonzero(data.terminated).tolist() == [0, 3]
    assert not data.truncated.any()
    # The directory within is enough, and the description counts in the hash.
    assert read_data(tmp_path / "arm-v0" / "data").header.steps == 3
    before = content_hash(tmp_path / "arm-v0")
    (tmp_path / "arm-v0" / "data" / "metadata.json").write_text("{}")
    assert content_hash(tmp_path / "arm-v0") != before
    assert open_data(tmp_path / "arm-v0").header.environment == ""


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_what_minari_does_not_write_as_numbers_of_each_step_is_refused(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    write_minari(tmp_path / "arm-v0")
    with h5py.File(tmp_path / "arm-v0" / "data" / "main_data.hdf5", "a") as file:
        if kind == "images":
            file["episode_9"].create_dataset("observations/image", (2,), h5py.vlen_dtype(np.uint8))
            message = "holds no plain numbers: write images with jpeg_encoding=False"
        else:
            # There is an observation more than steps.
            for number, rows in ((10, 2), (9, 3)):
                del file[f"episode_{number}/observations/pos"]
                file[f"episode_{number}/observations/pos"] = np.zeros((rows, 2))
            message = "damaged, or of another layout .*rows"
    with pytest.raises(ConfigError, match=message):
        read_data(tmp_path / "arm-v0")


@pytest.mark.parametrize("kind", ["link", "storage", "virtual"])
def test_arrays_that_lie_in_other_files_are_refused(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["x"] = np.zeros(2)
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        if kind == "link":
            file["observations"] = h5py.ExternalLink("other.hdf5", "x")
        elif kind == "storage":
            file.create_dataset("observations", (8,), np.uint8, external=[(str(tmp_path / "secret"), 0, 8)])
        else:
            layout = h5py.VirtualLayout((2,), np.float64)
            layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "x", (2,))
            file.create_virtual_dataset("observations", layout)
    with pytest.raises(ConfigError, match="observations lies in another file: copy it into this one"):
        read_data(tmp_path / "data.hdf5")


@pytest.mark.parametrize("given", ["float64", "int64", "int16", "int8", "uint16", "uint8", "bool"])
def test_arrays_have_the_types_that_environments_observe(tmp_path, given):
    arrays = {name: np.zeros(2, given) for name in ("observations", "actions", "rewards", "terminals")}
    np.savez(tmp_path / "data.npz", **arrays)
    data = read_data(tmp_path / "data.npz")
    assert data.observation.agent_view.dtype == given.replace("64", "32")
    assert data.action.dtype == ("float32" if given == "float64" else "int32")
    assert data.reward.dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"rewards": np.ones(1)}, r"damaged.* \(rewards has 1 rows, and observations has 6\)"),
        ({"rewards": np.ones((6, 2))}, r"damaged.* \(cannot reshape"),
        ({"observations": np.zeros((7, 1))}, r"damaged.* \(actions has 6 rows, and observations has 7\)"),
        ({"actions": np.full(6, 2**32 + 1)}, "actions has 4294967297, which 32 bits do not hold: use smaller"),
        ({"observations": np.full(6, 2**31, np.uint32)}, "observations has 2147483648, which 32 bits do not hold"),
        ({"actions": np.full(6, 1j)}, "actions holds no plain numbers"),
        ({"terminals": np.array([0, 1, np.nan, 1, 0, 1])}, "terminals is NaN in row 2: leave its episode out"),
        ({"masks": np.array([0, 1, 1, 1, 0, np.nan])}, "masks is NaN in row 5"),
        ({"timeouts": np.zeros(1)}, r"damaged.* \(timeouts has 1 rows, and observations has 6\)"),
        ({"timeouts": np.array([0, np.nan, 1, 1, 0, 1])}, "timeouts is NaN in row 1"),
    ],
)
def test_arrays_are_read_exactly_or_refused(tmp_path, arrays, message):
    """Rewards are floats, and may be large."""
    usual = {"observations": OBSERVATIONS, "actions": ACTIONS, "terminals": np.arange(6) == 5}
    usual["rewards"] = np.full(6, 3 * 10**9)
    np.savez_compressed(tmp_path / "usual.npz", **usual)
    assert read_data(tmp_path / "usual.npz").reward[0] == 3e9
    np.savez_compressed(tmp_path / "data.npz", **{**usual, **arrays})
    with pytest.raises(ConfigError, match=rf"^system\.data=.*data\.npz: {message}"):
        read_data(tmp_path / "data.npz")


def test_rows_are_compared_before_arrays_are_read(tmp_path):
    """Zeros of 64 GiB, compressed, are not read."""
    write_ogbench(tmp_path / "data.npz")
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"shape": (2**34,), "fortran_order": False, "descr": "<f4"})
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as file:
        file.writestr("rewards.npy", array.getvalue())
    with pytest.raises(ConfigError, match=r"rewards has 17,179,869,184 rows, and observations has 6"):
        read_data(tmp_path / "data.npz")
