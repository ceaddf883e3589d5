from stoix_like.storage.differences import format_value, tell_apart
from stoix_like.storage.recorded_runs import read_runs, task_names
from support.recorded import write_run


def test_as_many_settings_are_named_as_tell_runs_apart(tmp_path):
    for name, common, last in (("a", 1, 1), ("b", 2, 1), ("c", 2, 2)):
        write_run(tmp_path / name, first=common, second=-common, third=3 * common, fourth=last, fifth=-last)
    write_run(tmp_path / "d", env="Acrobot-v1", first=9)
    runs = sorted(read_runs([tmp_path])[0], key=lambda run: run.directory.name)
    assert tell_apart(runs, task_names(runs)) == [
        "first=1 second=-1 third=3",
        "first=2 second=-2 third=6 fourth=1",
        "first=2 second=-2 third=6 fourth=2",
        "",
    ]


def test_values_are_short():
    assert [format_value(value) for value in (0.123456, 1e-7, 12345, "mean", None)] == [
        "0.1235",
        "1e-07",
        "12345",
        "mean",
        "None",
    ]
