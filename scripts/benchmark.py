"""Measure the speed of stoix_like, alone or compared with other frameworks.

Each scenario and each of its peers compiles in its own process and starts with one run that does not count; then the
runs alternate. Steps per wall second are the median of the runs, steps per CPU second (of all threads) the best of
them: on a busy machine, the minimum of the CPU time is the most stable number.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

SCRIPTS = Path(__file__).resolve().parent
OURS = "stoix_like"

PPO_SMALL = ("system=ppo/ff_ppo", "env=gymnax/cartpole", "network=mlp", "arch.total_num_envs=4")
PPO_WIDE = (
    *PPO_SMALL[:3],
    "arch.total_num_envs=512",
    "arch.total_timesteps=2e6",
    "system.num_minibatches=16",
    *(f"network.{name}_network.pre_torso.layer_sizes=[256,256]" for name in ("actor", "critic")),
    *(f"network.{name}_network.pre_torso.activation=relu" for name in ("actor", "critic")),
)
# Minibatches of 256 images of 10 x 10 pixels.
PPO_PIXELS = (
    "system=ppo/ff_ppo",
    "env=gymnax/breakout",
    "network=cnn",
    "arch.total_num_envs=8",
    "arch.total_timesteps=4096",
)
XLA_CONVOLUTIONS = tuple(f"+network.{name}_network.pre_torso.sliced=false" for name in ("actor", "critic"))
# Start states are those of the first episodes, as brax trains.
PPO_PHYSICS = (
    *("+experiment=_ppo_brax", "env.auto_reset=cached", "arch.total_num_envs=4096", "arch.total_timesteps=1e7"),
    *("system.rollout_length=16", "system.num_minibatches=32"),
)
REJAX_PPO = {
    "env": "CartPole-v1",
    "num_envs": 4,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 1e-3,
    "max_grad_norm": 0.5,
    "total_timesteps": 500_000,
    "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": [64, 64]},
}
REJAX_PPO_WIDE = REJAX_PPO | {
    "num_envs": 512,
    "num_minibatches": 16,
    "total_timesteps": 2_000_000,
    "agent_kwargs": {"activation": "relu", "hidden_layer_sizes": [256, 256]},
}
# A minibatch is 4 environments x 128 steps / 4. sbx steps environments on the host: a tenth of the budget is enough.
SBX_PPO = {
    "algorithm": "PPO",
    "env": "CartPole-v1",
    "num_envs": 4,
    "steps": 50_000,
    "model": {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "policy_kwargs": {"net_arch": [64, 64]}},
}


def recurrent_ppo(network: str, *names: str) -> tuple[str, ...]:
    """Return recurrent PPO in the shape of PureJaxRL's, with torsos and cells of the named networks."""
    parts = ("pre_torso.layer_sizes=[128]", "rnn_layer.hidden_state_dim=128", "post_torso.layer_sizes=[128]")
    return (
        *("system=ppo/rec_ppo", "env=gymnax/cartpole", f"network={network}", "arch.total_num_envs=4"),
        *("arch.total_timesteps=5e4", "system.num_minibatches=4"),
        *(f"network.{name}_network.{part}" for name in names for part in parts),
    )


REC_PPO = recurrent_ppo("rnn", "actor", "critic")
CELL = "network.actor_network.rnn_layer.cell_type"

# One gradient step for every step of all environments.
STEP_BY_STEP = ("system.rollout_length=1", "system.epochs=1")
DQN = (
    "system=q_learning/ff_dqn",
    "env=gymnax/cartpole",
    "network.actor_network.pre_torso.layer_sizes=[64,64]",
    "arch.total_num_envs=10",
    "arch.total_timesteps=5e5",
    *STEP_BY_STEP,
    "system.warmup_steps=100",
    "system.total_buffer_size=1e4",
    "system.total_batch_size=128",
)
SAC = (
    "system=sac/ff_sac",
    "env=gymnax/pendulum",
    *(f"network.{name}_network.pre_torso.layer_sizes=[256,256]" for name in ("actor", "q")),
    "arch.total_num_envs=8",
    "arch.total_timesteps=1e5",
    *STEP_BY_STEP,
    "system.warmup_steps=128",
    "system.total_buffer_size=1e5",
    "system.total_batch_size=256",
)
REJAX_DQN = {
    "env": "CartPole-v1",
    "num_envs": 10,
    "num_epochs": 1,
    "buffer_size": 10_000,
    "batch_size": 128,
    "fill_buffer": 1000,
    "total_timesteps": 500_000,
    # rejax fixes the width of the layers at 64.
    "agent_kwargs": {"activation": "relu"},
}
REJAX_SAC = {
    "env": "Pendulum-v1",
    "num_envs": 8,
    "num_epochs": 1,
    "buffer_size": 100_000,
    "batch_size": 256,
    "fill_buffer": 1024,
    "total_timesteps": 100_000,
    "hidden_layer_sizes": (256, 256),
}
SBX_DQN = {
    "algorithm": "DQN",
    "env": "CartPole-v1",
    "num_envs": 10,
    "steps": 50_000,
    "model": {"buffer_size": 10_000, "batch_size": 128, "train_freq": 1, "gradient_steps": 1, "learning_starts": 1000},
}
SBX_SAC = {
    "algorithm": "SAC",
    "env": "Pendulum-v1",
    "num_envs": 8,
    "steps": 10_000,
    "model": {"buffer_size": 100_000, "batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_starts": 1024},
}


# What `--scale` makes smaller, in our settings and in those of peers, and the least that it leaves.
SIZES = {
    **{"arch.total_num_envs": 8, "arch.population.size": 2, "arch.total_timesteps": 4096},
    **{"num_envs": 8, "members": 2, "total_timesteps": 4096, "steps": 4096},
}


class Goal(NamedTuple):
    """A bound on our number, or on its ratio to that of the first peer."""

    number: Literal["wall", "cpu", "value"]
    value: float
    at_least: bool = True


@dataclass(frozen=True)
class Scenario:
    """A benchmark.

    Attributes:
        overrides: hydra overrides of our configuration.
        measure: a function of `benchmark_ours.py`.
        unit: unit of the result, where it is not a speed.
        peers: by name, the settings that the peer's script takes.
        goal: for our number, or for its ratio to that of the first peer.
        on_cpu: whether it is measured by default on a machine without an accelerator.
    """

    overrides: tuple[str, ...]
    measure: str = "train"
    unit: str = ""
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    goal: Goal | None = None
    on_cpu: bool = True

    def scaled(self, scale: float) -> "Scenario":
        """Return the scenario with fewer environments, members and steps, for a trial."""
        overrides = (override.partition("=") for override in self.overrides)
        peers = {
            name: {
                **_scaled(settings, scale),
                **({"create": _scaled(settings["create"], scale)} if "create" in settings else {}),
            }
            for name, settings in self.peers.items()
        }
        return replace(
            self,
            overrides=(
                *(f"{key}{sign}{_scaled({key: value}, scale)[key]}" for key, sign, value in overrides),
                *("arch.num_eval_episodes=2", "arch.max_eval_steps=100"),
            ),
            peers=peers,
            goal=None,
        )


def _scaled(settings: dict[str, Any], scale: float) -> dict[str, Any]:
    return settings | {
        name: max(min(int(float(settings[name])), least), int(float(settings[name]) * scale))
        for name, least in SIZES.items()
        if name in settings
    }


def rejax_settings(create: dict[str, Any], algorithm: str = "PPO", members: int = 1) -> dict[str, Any]:
    """Return the settings of `benchmark_rejax.py`."""
    return {"algorithm": algorithm, "members": members, "create": create}


SCENARIOS = {
    "ppo_small": Scenario(
        PPO_SMALL, peers={"rejax": rejax_settings(REJAX_PPO), "sbx": SBX_PPO}, goal=Goal("cpu", 1.15)
    ),
    "ppo_wide": Scenario(PPO_WIDE, peers={"rejax": rejax_settings(REJAX_PPO_WIDE)}, goal=Goal("cpu", 1.0)),
    "ppo_4096": Scenario(
        (*PPO_WIDE, "arch.total_num_envs=4096", "arch.total_timesteps=2e7"),
        peers={"rejax": rejax_settings(REJAX_PPO_WIDE | {"num_envs": 4096, "total_timesteps": 20_000_000})},
        on_cpu=False,
    ),
    "population": Scenario(
        (*PPO_SMALL, "arch.total_timesteps=1e5", "arch.population.size=16", f"arch.num_devices={os.cpu_count()}"),
        peers={"rejax": rejax_settings(REJAX_PPO | {"total_timesteps": 100_000}, members=16)},
        goal=Goal("wall", 1.3),
    ),
    "population_256": Scenario(
        (*PPO_SMALL, "arch.total_timesteps=1e5", "arch.population.size=256"),
        peers={"rejax": rejax_settings(REJAX_PPO | {"total_timesteps": 100_000}, members=256)},
        on_cpu=False,
    ),
    **{
        f"ppo_{suite}": Scenario((*PPO_PHYSICS, f"env={suite}/{task}"), on_cpu=False)
        for suite, task in {"brax": "ant", "playground": "cheetah_run"}.items()
    },
    "dqn": Scenario(DQN, peers={"rejax": rejax_settings(REJAX_DQN, "DQN"), "sbx": SBX_DQN}, goal=Goal("cpu", 1.7)),
    "sac": Scenario(SAC, peers={"rejax": rejax_settings(REJAX_SAC, "SAC"), "sbx": SBX_SAC}, goal=Goal("cpu", 1.05)),
    "rec_ppo": Scenario(REC_PPO),
    "rec_ppo_shared": Scenario(recurrent_ppo("rnn_shared", "actor")),
    "unroll_gru": Scenario(REC_PPO, "unroll"),
    **{
        f"{measure}_{cell}": Scenario((*REC_PPO, f"{CELL}={cell}"), measure)
        for cell in ("mingru", "lru")
        for measure in ("unroll", "unroll_in_steps")
    },
    "env_only": Scenario(PPO_SMALL, "env_only"),
    "net_only": Scenario(PPO_SMALL, "net_only"),
    "pixels": Scenario(PPO_PIXELS, "net_only"),
    "pixels_xla": Scenario((*PPO_PIXELS, *XLA_CONVOLUTIONS), "net_only"),
    "evaluation": Scenario(PPO_SMALL, "evaluation", unit="% of the time", goal=Goal("value", 5.0, at_least=False)),
    "time_to_first_update": Scenario(
        (*PPO_SMALL, "arch.total_timesteps=1024", "arch.num_evaluation=2"),
        "time_to_first_update",
        unit="s",
        goal=Goal("value", 6.0, at_least=False),
    ),
}

# The cheapest environment of each suite, where the adapter's own cost shows most, stepped by the suite's own means.
# brax and MuJoCo Playground return to the first start states, as our mode `cached` does.
CACHED = ("brax/inverted_pendulum", "playground/cartpole_balance")
STEPPED = {
    "brax/inverted_pendulum": "inverted_pendulum",
    "craftax/classic_symbolic": "Craftax-Classic-Symbolic-v1",
    "gymnax/cartpole": "CartPole-v1",
    "jumanji/snake": "Snake-v1",
    "navix/empty_5x5": "Navix-Empty-5x5-v0",
    "pgx/tic_tac_toe": "tic_tac_toe",
    "playground/cartpole_balance": "CartpoleBalance",
    "xminigrid/empty_5x5": "MiniGrid-Empty-5x5",
}
STEPS_NUM_ENVS, STEPS_LENGTH = 256, 1000
SCENARIOS |= {
    f"steps_{env.partition('/')[0]}": Scenario(
        (
            *(f"env={env}", f"env.auto_reset={'cached' if env in CACHED else 'fresh'}"),
            *(f"arch.total_num_envs={STEPS_NUM_ENVS}", f"system.rollout_length={STEPS_LENGTH}"),
        ),
        "steps",
        peers={
            "suite": {
                "suite": env.partition("/")[0],
                "name": name,
                "num_envs": STEPS_NUM_ENVS,
                "num_steps": STEPS_LENGTH,
            }
        },
        goal=Goal("cpu", 0.9),
        on_cpu=False,
    )
    for env, name in STEPPED.items()
}
# Training on the host's environments, which both sides step; and what a call costs beyond stepping 16 of them.
HOST_PPO = (*PPO_SMALL[:1], *PPO_SMALL[2:], "arch.total_timesteps=50_000")
HOST_SAC = (*SAC[:1], *SAC[2:], "arch.total_timesteps=10_000", "env=gymnasium/pendulum")
HOSTS = {
    "host_ppo_sync": (*HOST_PPO, "env=gymnasium/cartpole"),
    "host_ppo_async": (*HOST_PPO, "env=gymnasium/cartpole", "env.vectorization=async"),
    "host_ppo_envpool": (*HOST_PPO, "env=envpool/cartpole"),
    "host_sac": HOST_SAC,
}
BRIDGES = {
    "host_bridge_sync": ("env=gymnasium/cartpole",),
    "host_bridge_async": ("env=gymnasium/cartpole", "env.vectorization=async"),
    "host_bridge_envpool": ("env=envpool/cartpole",),
}
SCENARIOS |= {
    name: Scenario(
        overrides, peers={"sbx": SBX_SAC if name == "host_sac" else SBX_PPO}, goal=Goal("wall", 2.0), on_cpu=False
    )
    for name, overrides in HOSTS.items()
}
SCENARIOS |= {
    name: Scenario(
        (*overrides, "arch.total_num_envs=16", "system.rollout_length=2000"),
        "bridge",
        unit="ms per call",
        goal=Goal("value", 0.3, at_least=False),
        on_cpu=False,
    )
    for name, overrides in BRIDGES.items()
}
# Names for several scenarios.
GROUPS = {
    group: tuple(name for name in SCENARIOS if name.startswith(prefix))
    for group, prefix in {"suites": "steps_", "host": "host_"}.items()
} | {"accelerator": ("ppo_4096", "population_256", "ppo_brax", "ppo_playground", "sac")}


class Process:
    """A benchmark process, which measures one run per request.

    Args:
        command: program and arguments.
        memory: share of the memory of an accelerator that the process takes.
    """

    def __init__(self, command: list[str], memory: float = 0.75) -> None:
        self._command = command
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipe = subprocess.PIPE
        env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{memory:.2f}", **os.environ}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=env)
        self.ready = self._read()

    def run(self) -> dict[str, Any]:
        """Measure once."""
        assert self._process.stdin
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Close the input of the process, which ends it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            # Libraries print as well.
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        reason = self._errors.read()[-3000:]
        self.close()
        raise SystemExit(f"{' '.join(self._command)}\n{reason}")


def commands(name: str, pythons: dict[str, Path], profile: str, scale: float = 1.0) -> dict[str, list[str]]:
    """Return the commands of a scenario: ours, and those of its installed peers."""
    scenario = SCENARIOS[name] if scale == 1.0 else SCENARIOS[name].scaled(scale)
    directory = str(Path(profile) / name) if profile else ""
    ours = [sys.executable, str(SCRIPTS / "benchmark_ours.py"), scenario.measure, directory, *scenario.overrides]
    theirs = {
        peer: [str(pythons[peer]), str(SCRIPTS / f"benchmark_{peer}.py"), json.dumps(settings)]
        for peer, settings in scenario.peers.items()
        if peer in pythons
    }
    return {OURS: ours, **theirs}


def measure(
    name: str, pythons: dict[str, Path], repeats: int, profile: str = "", scale: float = 1.0
) -> list[dict[str, Any]]:
    """Measure a scenario in alternating runs; return one row for each process."""
    asked = commands(name, pythons, profile, scale)
    # All of them are there at once.
    processes = {who: Process(command, 0.9 / len(asked)) for who, command in asked.items()}
    for process in processes.values():
        process.run()
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in processes}
    for _ in range(repeats):
        for who, process in processes.items():
            runs[who].append(process.run())
    for process in processes.values():
        process.close()
    rows = [
        {"scenario": name, "who": who, **processes[who].ready, **summarise_runs(measured)}
        for who, measured in runs.items()
    ]
    for row in rows[1:]:
        row["ratio"] = {number: rows[0][number] / row[number] for number in ("wall", "cpu")}
    goal, value = SCENARIOS[name].goal, _goal_value(SCENARIOS[name], rows)
    if scale == 1.0 and goal and value is not None:
        rows[0]["goal"] = {"value": value, "met": value >= goal.value if goal.at_least else value <= goal.value}
    return rows


def _goal_value(scenario: Scenario, rows: list[dict[str, Any]]) -> float | None:
    """Return the number that the goal bounds; None if its peer was not measured."""
    if not scenario.goal or scenario.goal.number == "value":
        return rows[0].get("value")
    ratios = [row["ratio"] for row in rows[1:] if row["who"] == next(iter(scenario.peers))]
    return ratios[0][scenario.goal.number] if ratios else None


def summarise_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduce several runs to one row: steps per second, or the median of another measure."""
    if "value" in runs[0]:
        return {"value": statistics.median(run["value"] for run in runs)}
    row = {
        "wall": statistics.median(run["steps"] / run["wall"] for run in runs),
        "cpu": max(run["steps"] / run["cpu"] for run in runs),
    }
    returns = [run["return"] for run in runs if "return" in run]
    return row | ({"return": statistics.mean(returns)} if returns else {})


COLUMNS = ("scenario", "", "compile, s", "steps / wall s", "steps / CPU s", "return", "goal")


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row of the table."""
    scenario, ours = SCENARIOS[row["scenario"]], row["who"] == OURS
    compiling = "" if row["compile"] is None else f"{row['compile']:.1f}"
    if "value" in row:
        speeds = [f"{row['value']:.3g} {scenario.unit}", ""]
    else:
        speeds = [f"{row['wall']:,.0f}", f"{row['cpu']:,.0f}"]
        if "ratio" in row:
            pairs = zip(speeds, row["ratio"].values(), strict=True)
            speeds = [f"{speed} (ours {ratio:.2f} x)" for speed, ratio in pairs]
    final = f"{row['return']:.0f}" if "return" in row else ""
    return [row["scenario"] if ours else "", row["who"], compiling, *speeds, final, _format_goal(scenario, row)]


def _format_goal(scenario: Scenario, row: dict[str, Any]) -> str:
    if "goal" not in row or not scenario.goal:
        return ""
    goal, reached = scenario.goal, row["goal"]
    sign = "≥" if goal.at_least else "≤"
    if goal.number == "value":
        return f"{sign} {goal.value:g} {scenario.unit}: {'met' if reached['met'] else 'missed'}"
    peer = next(iter(scenario.peers))
    per = {"wall": "wall", "cpu": "CPU"}[goal.number]
    return (
        f"{sign} {goal.value:g} x {peer} per {per} s: {reached['value']:.2f}, {'met' if reached['met'] else 'missed'}"
    )


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    """Format the table for the documentation, below the command and the machine."""
    lines = [f"    {command}", "", f"{describe_machine()}, jax {rows[0]['jax']}.", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def describe_machine() -> str:
    """Return the name of the processor or of the accelerator."""
    accelerator = query_device()
    if accelerator["platform"] != "cpu":
        return accelerator["kind"]
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.split(": ")[1] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


def query_device() -> dict[str, str]:
    """Query jax's device in a separate process, because the first process takes the memory of an accelerator."""
    code = "import jax, json; d = jax.devices()[0]; print(json.dumps({'platform': d.platform, 'kind': d.device_kind}))"
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def write_into(page: Path, name: str, table: str) -> None:
    """Replace the text of a page between `<!-- name -->` and `<!-- end -->`."""
    before, found, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, closed, after = rest.partition("<!-- end -->")
    if not found or not closed:
        raise SystemExit(f"{page} has no <!-- {name} --> … <!-- end -->")
    page.write_text(f"{before}{found}\n{table}\n\n{closed}{after}")


def write_section(page: Path, table: str) -> None:
    """Write the section of this accelerator into a page, between `<!-- accelerators -->` and its end.

    The section of an earlier measurement is replaced, and those of other accelerators stay.
    """
    heading = describe_machine()
    _, _, rest = page.read_text().partition("<!-- accelerators -->")
    sections = rest.partition("<!-- end -->")[0].split("### ")[1:]
    others = [section.strip() for section in sections if section.partition("\n")[0] != heading]
    today = f"{datetime.date.today():%d %B %Y}, {describe_versions()}."
    sections = [*others, f"{heading}\n\n{today}\n\n{table}"]
    write_into(page, "accelerators", "\n\n".join(f"### {section}" for section in sorted(sections)))


def describe_versions() -> str:
    """Return the versions of the packages that the results on an accelerator depend on."""
    packages = ("stoix_like", "jax", "jaxlib", "flax", "gymnax", "brax", "playground", "mujoco-mjx")
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(f"{name} {version}" for name, version in found.items())


def find_peers(directory: Path | None) -> dict[str, Path]:
    """Return the Python interpreters of the peers below a directory, by name."""
    finished = directory.glob("*/.installed") if directory else ()
    found = {path.parent.name: path.parent / "bin/python" for path in finished}
    if directory and not found:
        raise SystemExit(f"no peer is installed in {directory}: make bench-peers")
    return found


def parse_arguments() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="scenario",
        help=f"{', '.join([*GROUPS, *SCENARIOS])} (default: all for this machine)",
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs that count, per process (default: 5)")
    parser.add_argument("--peers", type=Path, help="directory with one virtual environment per peer: rejax, sbx")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--into", type=Path, help="write the table into this page of the documentation")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the environments, members and steps, for a trial: 0.004"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    parser.add_argument("--profile", default="", help="write traces of jax's profiler to this directory")
    asked = parser.parse_args()
    unknown = [name for name in asked.scenarios if name not in {**SCENARIOS, **GROUPS}]
    if unknown:
        parser.error(f"unknown scenario {unknown[0]!r}: choose from {', '.join([*GROUPS, *SCENARIOS])}")
    if asked.repeats < 1:
        parser.error(f"--repeats={asked.repeats} must be at least 1")
    if not 0.0 < asked.scale <= 1.0:
        parser.error(f"--scale={asked.scale} must be more than 0 and at most 1: use 0.004")
    return asked


def main() -> None:
    """Measure the requested scenarios and print a table."""
    asked = parse_arguments()
    # The suites themselves are installed beside us.
    pythons = {"suite": Path(sys.executable)} | find_peers(asked.peers)
    on_cpu = query_device()["platform"] == "cpu"
    # Scenarios without an installed peer belong to the other table.
    default = [name for name, scenario in SCENARIOS.items() if (scenario.on_cpu or not on_cpu)]
    default = [name for name in default if not asked.peers or set(SCENARIOS[name].peers) & set(pythons)]
    rows: list[dict[str, Any]] = []
    for name in chain.from_iterable(GROUPS.get(name, (name,)) for name in asked.scenarios or default):
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += measure(name, pythons, asked.repeats, asked.profile, asked.scale)
        if asked.json:
            # Keeps the results so far if a later scenario fails.
            asked.json.write_text(json.dumps(rows, indent=2))
    if asked.scenarios == ["accelerator"]:
        table = markdown(rows, "make bench-accelerator")
        if asked.into and (on_cpu or asked.scale < 1.0):
            print(f"{asked.into} stays as it is: this is not a measurement on an accelerator", file=sys.stderr)
        elif asked.into:
            write_section(asked.into, table)
    else:
        target = "bench-peers" if asked.peers else "bench"
        options = f' ARGS="{" ".join(asked.scenarios)}"' if asked.scenarios else ""
        table = markdown(rows, f"make {target}{options}")
        if asked.into:
            write_into(asked.into, target, table)
    if asked.markdown:
        print(table)
    else:
        shown = Table(*COLUMNS)
        for row in rows:
            shown.add_row(*cells(row))
        Console(width=None if sys.stdout.isatty() else 160).print(shown)


if __name__ == "__main__":
    main()
