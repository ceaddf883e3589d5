import json

import pytest

from stoix_like.cli.listings import run_lines
from stoix_like.errors import ConfigError
from support.lazily import Lazy
from support.recorded import set_key, write_run

analysis, report = map(Lazy, ("stoix_like.lab.analysis", "stoix_like.lab.analysis.report"))
pytestmark = pytest.mark.usefixtures("few_resamples")


def labels(paths):
    return [algorithm.label for algorithm in analysis.read(paths)]


def test_seeds_of_single_runs_and_of_populations_are_grouped(two):
    by_label = {algorithm.label: algorithm for algorithm in analysis.read(two)}
    assert list(by_label) == ["q_learning/ff_dqn", "ppo/ff_ppo"]
    assert by_label["q_learning/ff_dqn"].scores("gymnax/CartPole-v1").tolist() == [10.0, 12.0, 14.0, 16.0, 18.0]
    assert [member.seed for member in by_label["ppo/ff_ppo"].members] == [0, 1, 2, 3, 4]


def test_labels_name_the_settings_in_which_algorithms_differ_and_as_many_as_tell_them_apart(tmp_path):
    write_run(tmp_path / "few/a", actor_lr=0.01)
    write_run(tmp_path / "few/b", actor_lr=0.02)
    write_run(tmp_path / "few/c", (1.0, 2.0), varied={"gamma": [0.9, 0.99]}, actor_lr=0.01)
    settings = ("actor_lr=0.01 gamma=None", "actor_lr=0.02 gamma=None", "actor_lr=0.01 gamma=0.9")
    expected = [f"ppo/ff_ppo {words}" for words in (*settings, "actor_lr=0.01 gamma=0.99")]
    assert labels(tmp_path / "few") == expected
    for number, keys in enumerate(({}, {"b": 2}, {"e": 2}, {"e": 3, "d": 2})):
        write_run(tmp_path / f"many/{number}", **{"a": number % 2, "b": 1, "c": 1, "d": 1, "e": 1, **keys})
    settings = ("a=0 b=1 d=1 e=1", "a=1 b=2 d=1", "a=0 b=1 d=1 e=2", "a=1 b=1 d=2")
    assert labels(tmp_path / "many") == [f"ppo/ff_ppo {words}" for words in settings]


def test_labels_name_keys_by_the_words_that_tell_them_apart(tmp_path):
    for cell, sizes in (("gru", [64]), ("lstm", [32])):
        directory = write_run(tmp_path / cell, cell=cell)
        critic = {"rnn_layer": {"cell_type": cell}, "pre_torso": {"layer_sizes": sizes}}
        set_key(directory, "network.critic_network", critic)
        set_key(directory, "network.actor_network.pre_torso", {"layer_sizes": [16, *sizes]})
    # The cells are always the same in both networks, the sizes are not.
    assert labels(tmp_path) == [
        "ppo/ff_ppo cell_type=gru actor_network.pre_torso.layer_sizes=[16, 64]"
        " critic_network.pre_torso.layer_sizes=[64]",
        "ppo/ff_ppo cell_type=lstm actor_network.pre_torso.layer_sizes=[16, 32]"
        " critic_network.pre_torso.layer_sizes=[32]",
    ]


def test_of_budgets_labels_name_the_steps_alone(tmp_path):
    for name, curves in (("short", [[0.0], [1.0]]), ("long", [[0.0], [1.0], [2.0]])):
        set_key(write_run(tmp_path / name, curves=curves), "arch.num_evaluation", len(curves) - 1)
    expected = [f"ppo/ff_ppo total_timesteps={steps}" for steps in (100, 200)]
    assert labels([tmp_path / "short", tmp_path / "long"]) == expected


def test_several_budgets_of_a_seed_split_no_other_system(tmp_path):
    runs = [("ppo/a", 0, 2), ("ppo/a", 1, 3), ("q_learning/ff_dqn", 0, 2), ("q_learning/ff_dqn", 0, 3)]
    for system, seed, length in runs:
        write_run(tmp_path / f"{system}{seed}{length}", curves=[[0.0]] * length, seed=seed, system=system)
    found = {algorithm.label: len(algorithm.members) for algorithm in analysis.read(tmp_path)}
    dqn = {f"q_learning/ff_dqn total_timesteps={steps}": 1 for steps in (100, 200)}
    assert found == {"ppo/a": 2, **dqn}


def test_a_seed_counts_once(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"seed 0 occurs twice .*/a and .*/b"):
        analysis.read(tmp_path)


def test_arguments_and_parameters_of_environments_make_tasks(tmp_path):
    for length, penalty in ((8, 0.1), (32, 0.1), (8, None)):
        for system in ("ppo/rec_ppo", "ppo/ff_ppo"):
            params = {} if penalty is None else {"penalty": penalty}
            kwargs = {"length": length, "steps": 9}
            directory = tmp_path / f"{system}{length}{penalty}"
            write_run(directory, system=system, env_kwargs=kwargs, env_params=params, env="maze")
    tasks = ["gymnax/maze length=8 penalty=0.1", "gymnax/maze length=32 penalty=0.1", "gymnax/maze length=8"]
    algorithms = analysis.read(tmp_path)
    assert [(algorithm.label, set(algorithm.tasks)) for algorithm in algorithms] == [
        ("ppo/ff_ppo", set(tasks)),
        ("ppo/rec_ppo", set(tasks)),
    ]
    comparison = str(analysis.compare(algorithms))
    assert all(task in comparison for task in tasks)
    lines = run_lines([tmp_path])[1:]
    assert all(sum(f" {task}  " in line for line in lines) == 2 for task in tasks)
    assert set(analysis.load(tmp_path).environment) == set(tasks)
    report.write([tmp_path], tmp_path / "report.html", animation=False)
    assert all(task in (tmp_path / "report.html").read_text() for task in tasks)
    # Alone, an environment needs no arguments in its name.
    assert set(analysis.read(tmp_path / "ppo/rec_ppo8None")[0].tasks) == {"gymnax/maze"}


def test_tasks_name_the_group_of_keys_that_share_their_last_word(tmp_path):
    write_run(tmp_path / "kwargs", env="maze", env_kwargs={"length": 8, "size": 2})
    write_run(tmp_path / "params", env="maze", env_params={"length": 8})
    (algorithm,) = analysis.read(tmp_path)
    assert set(algorithm.tasks) == {"gymnax/maze kwargs.length=8 size=2", "gymnax/maze params.length=8"}


def test_wrappers_of_environments_are_settings_where_they_tell_seeds_apart(tmp_path):
    for stack in (1, 4):
        write_run(tmp_path / f"{stack}", env_keys={"frame_stack": stack})
    write_run(tmp_path / "other", seed=1, env_keys={"frame_stack": 1})
    assert labels([tmp_path / "4", tmp_path / "other"]) == ["ppo/ff_ppo"]
    assert labels(tmp_path) == ["ppo/ff_ppo frame_stack=1", "ppo/ff_ppo frame_stack=4"]


def test_listed_runs_name_the_settings_that_tell_them_apart(tmp_path):
    for rate in (0.1, 0.2):
        write_run(tmp_path / f"{rate}", actor_lr=rate)
    write_run(tmp_path / "dqn", system="q_learning/ff_dqn")
    head, *rows = (line.split() for line in run_lines([tmp_path]))
    assert head[-1] == "settings"
    assert sorted(row[-1] for row in rows) == [str(tmp_path / "dqn"), "actor_lr=0.1", "actor_lr=0.2"]
    assert run_lines([tmp_path / "dqn"])[0].endswith("directory")


@pytest.mark.parametrize(
    ("returns", "failed", "shown"),
    [
        ((1.0, 2.0, 3.0, 500.0), [3], ["1.5", "(IQM)"]),
        # The middle of 1, 1, 1 and 2.
        ((1.0, 2.0, 3.0, 4.0), [2, 3], ["1", "(IQM)"]),
        ((1.0, 2.0), [0, 1], ["–"]),
    ],
)
def test_members_that_diverged_count_as_the_lowest_in_lists(tmp_path, returns, failed, shown):
    run = write_run(tmp_path / "a", returns)
    summary = json.loads((run / "summary.json").read_text())
    for member in failed:
        summary["population/members"][member]["failure"] = "train/loss became non-finite"
    (run / "summary.json").write_text(json.dumps(summary))
    assert run_lines([tmp_path])[1].split()[6 : 6 + len(shown)] == shown


def test_the_seeds_of_a_grid_are_grouped_by_its_hyperparameters(tmp_path):
    run = write_run(tmp_path / "a", (1.0, 2.0), varied={"actor_lr": [0.1, 0.2]})
    summary = json.loads((run / "summary.json").read_text())
    summary["population/members"][1]["seed"] = 0
    (run / "summary.json").write_text(json.dumps(summary))
    assert len(analysis.read(tmp_path)) == 2
    assert run_lines([tmp_path])[1].split()[5:8] == ["0", "×", "2"]
    with pytest.raises(ConfigError, match=r"seed 0 occurs in several .* add --by system.actor_lr$"):
        analysis.read(tmp_path, by=["system.name"])


def test_population_based_training_counts_as_one_seed_each(tmp_path):
    for seed in (0, 2):
        run = write_run(tmp_path / f"pbt{seed}", (1.0, 5.0, 3.0), seed=seed, bests=(9.0, 4.0, 2.0))
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"population/best": {"member": 0}}))
        varied = {"gamma": {"uniform": [0.9, 1.0]}}
        set_key(run, "arch.population", {"hyperparams": varied, "pbt": {"every_evals": 1}})
        path = run / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for number, record in enumerate(records):
            record |= {"population/best_member": 1, "hyperparams/gamma": [0.9, 0.91 + number / 100, 0.92]}
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    write_run(tmp_path / "plain", (1.0, 2.0))
    plain, evolved = sorted(analysis.read(tmp_path), key=lambda algorithm: "every_evals=1" in algorithm.label)
    assert [member.seed for member in plain.members] == [0, 1]
    assert [member.seed for member in evolved.members] == [0, 2]
    assert evolved.scores("gymnax/CartPole-v1").tolist() == [5.0, 5.0]
    # Episodes of the absolute metric choose the policy that is loaded, and not the member that statistics count.
    assert evolved.scores("gymnax/CartPole-v1", "best").tolist() == [4.0, 4.0]
    table = analysis.load(tmp_path / "pbt0")
    assert table[table.member == 1]["system.gamma"].tolist() == pytest.approx([0.91, 0.92])
    # Updates up to the evaluation at 100 steps ran with what the first selection, at step 0, left to it.
    updates = [{"env_steps": steps, "updates": steps // 50, "updates/loss": [1.0] * 3} for steps in (50, 100)]
    (tmp_path / "pbt0/updates.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in updates))
    table = analysis.load(tmp_path / "pbt0", updates=True)
    assert table[table.member == 1]["system.gamma"].tolist() == pytest.approx([0.92, 0.92])
