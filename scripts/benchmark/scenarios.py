"""What is measured: our configurations, and the same in the settings of other frameworks."""

import math
import os
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

# As rejax: rewards as they are, and clipped values, for which minibatches are drawn from one array more. sbx does not
# clip values.
PPO = ("system=ppo/ff_ppo", "system.normalize_rewards=false", "system.clip_value=true")
PPO_SMALL = (*PPO, "env=gymnax/cartpole", "network=mlp", "arch.total_num_envs=4")
PPO_WIDE = (
    *PPO_SMALL[:5],
    "arch.total_num_envs=512",
    "arch.total_timesteps=2e6",
    "system.num_minibatches=16",
    *(f"network.{name}_network.pre_torso.layer_sizes=[256,256]" for name in ("actor", "critic")),
    *(f"network.{name}_network.pre_torso.activation=relu" for name in ("actor", "critic")),
)
# Minibatches of 256 images of 10 x 10 pixels.
PPO_PIXELS = (
    *PPO,
    "env=gymnax/breakout",
    "network=cnn",
    "arch.total_num_envs=8",
    "arch.total_timesteps=4096",
)
XLA_CONVOLUTIONS = tuple(f"+network.{name}_network.pre_torso.sliced=false" for name in ("actor", "critic"))
# Start states are those of the first episodes, as brax trains.
PPO_PHYSICS = (
    *("+experiment=_ppo_brax", "env.auto_reset=cached", "arch.total_num_envs=4096", "arch.total_timesteps=4e6"),
    *("system.rollout_length=16", "system.num_minibatches=32"),
)
# brax's own PPO with the same numbers.
BRAX_PPO = {
    "rollouts": 1,  # of each environment between two updates
    "num_eval_envs": 128,
    "create": {"num_envs": 4096, "total_timesteps": 4_000_000},
    "network": {"policy_hidden_layer_sizes": [256, 256], "value_hidden_layer_sizes": [256, 256]},
    "train": {
        **{"unroll_length": 16, "num_minibatches": 32, "num_updates_per_batch": 4, "normalize_observations": True},
        **{"learning_rate": 3e-4, "discounting": 0.97, "gae_lambda": 0.95, "entropy_cost": 0.01, "max_grad_norm": 0.5},
    },
}
# What Playground publishes for CheetahRun.
PLAYGROUND_PPO = ("+experiment=_playground_control", "env.auto_reset=cached", "arch.total_timesteps=2e6")
BRAX_PLAYGROUND_PPO = BRAX_PPO | {
    "rollouts": 16,
    "create": {"num_envs": 2048, "total_timesteps": 2_000_000},
    "network": {"policy_hidden_layer_sizes": [32] * 4, "value_hidden_layer_sizes": [256] * 5},
    "train": {
        **{"unroll_length": 30, "num_minibatches": 32, "num_updates_per_batch": 16, "normalize_observations": True},
        **{"learning_rate": 1e-3, "discounting": 0.995, "entropy_cost": 0.01, "reward_scaling": 10.0},
    },
}
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
        *("arch.total_timesteps=5e4", "system.num_minibatches=4", "system.normalize_rewards=false"),
        "system.clip_value=true",
        *(f"network.{name}_network.{part}" for name in names for part in parts),
    )


REC_PPO = recurrent_ppo("rnn", "actor", "critic")
CELL = "network.actor_network.rnn_layer.cell_type"

# Each device has as many members or environments as the others.
CORES = math.gcd(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

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
    "ddqn": False,
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
    "model": {
        **{"buffer_size": 10_000, "batch_size": 128, "train_freq": 1, "gradient_steps": 1, "learning_starts": 1000},
        "policy_kwargs": {"net_arch": [64, 64]},
    },
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
        measure: a function of `ours.py`.
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
    """Return the settings of `peer_rejax.py`."""
    return {"algorithm": algorithm, "members": members, "create": create}


SCENARIOS = {
    "ppo_small": Scenario(
        PPO_SMALL, peers={"rejax": rejax_settings(REJAX_PPO), "sbx": SBX_PPO}, goal=Goal("cpu", 1.25)
    ),
    "ppo_wide": Scenario(PPO_WIDE, peers={"rejax": rejax_settings(REJAX_PPO_WIDE)}, goal=Goal("cpu", 1.0)),
    "ppo_4096": Scenario(
        (*PPO_WIDE, "arch.total_num_envs=4096", "arch.total_timesteps=2e7"),
        peers={"rejax": rejax_settings(REJAX_PPO_WIDE | {"num_envs": 4096, "total_timesteps": 20_000_000})},
        on_cpu=False,
    ),
    "population": Scenario(
        (*PPO_SMALL, "arch.total_timesteps=1e5", "arch.population.size=16", f"arch.num_devices={CORES}"),
        peers={"rejax": rejax_settings(REJAX_PPO | {"total_timesteps": 100_000}, members=16)},
        goal=Goal("wall", 2.0),
    ),
    "population_256": Scenario(
        (*PPO_SMALL, "arch.total_timesteps=1e5", "arch.population.size=256"),
        peers={"rejax": rejax_settings(REJAX_PPO | {"total_timesteps": 100_000}, members=256)},
        on_cpu=False,
    ),
    **{
        f"ppo_{suite}": Scenario(
            (*PPO_PHYSICS, f"env={suite}/{task}"),
            peers={"brax": BRAX_PPO | {"suite": suite, "name": name}},
            on_cpu=False,
        )
        for suite, task, name in (("brax", "ant", "ant"), ("playground", "cheetah_run", "CheetahRun"))
    },
    "ppo_playground_recipe": Scenario(
        PLAYGROUND_PPO,
        peers={"brax": BRAX_PLAYGROUND_PPO | {"suite": "playground", "name": "CheetahRun"}},
        on_cpu=False,
    ),
    "dqn": Scenario(DQN, peers={"rejax": rejax_settings(REJAX_DQN, "DQN"), "sbx": SBX_DQN}, goal=Goal("cpu", 2.0)),
    "sac": Scenario(SAC, peers={"rejax": rejax_settings(REJAX_SAC, "SAC"), "sbx": SBX_SAC}, goal=Goal("cpu", 1.15)),
    # Sections of the page name these, and those of pixels.
    # As JaxMARL's ippo_ff_mpe.py.
    "several_agents": Scenario(
        (
            *(*PPO, "env=jaxmarl/simple_spread", "network=mlp", "arch.total_num_envs=16", "arch.total_timesteps=4e5"),
            *("system.actor_lr=2.5e-4", "system.critic_lr=2.5e-4", "system.standardize_advantages=minibatch"),
        ),
        on_cpu=False,
    ),
    "rec_ppo": Scenario(REC_PPO, on_cpu=False),
    "rec_ppo_shared": Scenario(recurrent_ppo("rnn_shared", "actor"), on_cpu=False),
    "unroll_gru": Scenario(REC_PPO, "unroll", on_cpu=False),
    **{
        f"{measure}_{cell}": Scenario((*REC_PPO, f"{CELL}={cell}"), measure, on_cpu=False)
        for cell in ("mingru", "lru", "s5", "mlstm", "gtrxl")
        for measure in ("unroll", "unroll_in_steps")
    },
    "env_only": Scenario(PPO_SMALL, "env_only"),
    "net_only": Scenario(PPO_SMALL, "net_only"),
    "pixels": Scenario(PPO_PIXELS, "net_only", on_cpu=False),
    "pixels_xla": Scenario((*PPO_PIXELS, *XLA_CONVOLUTIONS), "net_only", on_cpu=False),
    "evaluation": Scenario(PPO_SMALL, "evaluation", unit="% of the time", goal=Goal("value", 5.0, at_least=False)),
    "time_to_first_update": Scenario(
        (*PPO_SMALL, "arch.total_timesteps=1024", "arch.num_evaluation=2"),
        "time_to_first_update",
        unit="s",
        goal=Goal("value", 3.5, at_least=False),
    ),
}

# The cheapest environment of each suite, where the adapter's own cost shows most, stepped by the suite's own means.
# brax and MuJoCo Playground return to the first start states, as our mode `cached` does; MJX has no episodes.
CACHED = ("brax", "mjx", "playground")
STEPPED = {
    "brax/inverted_pendulum": "inverted_pendulum",
    "craftax/classic_symbolic": "Craftax-Classic-Symbolic-v1",
    "gymnax/cartpole": "CartPole-v1",
    "jaxtari/pong": "pong",
    "jumanji/snake": "Snake-v1",
    "kinetix/thrust_aim": "s_h4_thrust_aim",
    "mjx/inverted_pendulum": "InvertedPendulum-v5",
    "navix/empty_5x5": "Navix-Empty-5x5-v0",
    "octax/brix": "brix",
    "pgx/tic_tac_toe": "tic_tac_toe",
    "playground/cartpole_balance": "CartpoleBalance",
    "xminigrid/empty_5x5": "MiniGrid-Empty-5x5",
}
STEPS_NUM_ENVS, STEPS_LENGTH = 256, 1000
# Legged robots, whose simulation takes most of the time.
RUNNERS = {
    "mjx/half_cheetah": "HalfCheetah-v5",
    "brax/halfcheetah": "halfcheetah",
    "mjx/ant": "Ant-v5",
    "brax/ant": "ant",
}


def stepped(env: str, name: str, num_envs: int, length: int) -> Scenario:
    """Return the steps of environments with random actions, through the adapter and by the suite itself."""
    suite = env.partition("/")[0]
    return Scenario(
        (
            *(f"env={env}", f"env.auto_reset={'cached' if suite in CACHED else 'fresh'}"),
            *(f"arch.total_num_envs={num_envs}", f"system.rollout_length={length}"),
        ),
        "steps",
        peers={"suite": {"suite": suite, "name": name, "num_envs": num_envs, "num_steps": length}},
        goal=Goal("cpu", 0.9),
        on_cpu=False,
    )


SCENARIOS |= {
    f"steps_{env.partition('/')[0]}": stepped(env, name, STEPS_NUM_ENVS, STEPS_LENGTH) for env, name in STEPPED.items()
}
SCENARIOS |= {f"steps_{env.replace('/', '_')}": stepped(env, name, 64, 100) for env, name in RUNNERS.items()}
# Training on the host's environments, which both sides step; and what a call costs beyond stepping 16 of them.
HOST_PPO = (*PPO[:2], *PPO_SMALL[4:], "arch.total_timesteps=50_000")
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
# Simulations of AlphaZero, environment steps included, and of mctx called by itself.
SEARCHED = {"cartpole": ("gymnax", "CartPole-v1", 64, 200), "connect_four": ("pgx", "connect_four", 64, 100)}
SCENARIOS |= {
    f"search_{env}": Scenario(
        (
            *("system=search/ff_az", "network=mlp", f"env={suite}/{env}", f"arch.total_num_envs={num_envs}"),
            *(f"system.rollout_length={num_steps}", "system.warmup_steps=0", "system.sequence_period=4"),
            *(
                "system.total_buffer_size=1e5",
                "system.num_simulations=32",
                *(("+env.kwargs.opponent=self",) if suite == "pgx" else ()),
            ),
        ),
        "search",
        peers={
            "mctx": {
                **{"suite": suite, "name": name, "num_envs": num_envs},
                **{"num_steps": num_steps, "num_simulations": 32},
            }
        },
        goal=Goal("cpu", 0.9),
        on_cpu=False,
    )
    for env, (suite, name, num_envs, num_steps) in SEARCHED.items()
}
# Training of MuZero on pixels.
SCENARIOS["muzero_minatar"] = Scenario(
    ("+experiment=mz_breakout", "arch.total_timesteps=16384", "arch.num_eval_episodes=8", "arch.max_eval_steps=200"),
    on_cpu=False,
)
# Training of DreamerV3, whose gradient steps take almost all of the time.
SCENARIOS["dreamer"] = Scenario(
    (
        *("system=dreamer/dreamer_v3", "env=gymnax/cartpole", "network=dreamer_xs", "arch.total_num_envs=4"),
        *("arch.total_timesteps=4096", "system.train_ratio=64", "system.rollout_length=16", "system.warmup_steps=64"),
        *("system.total_batch_size=16", "system.sequence_length=64", "system.total_buffer_size=1e4"),
    ),
    on_cpu=False,
)
# Names for several scenarios.
GROUPS = {
    group: tuple(name for name in SCENARIOS if name.startswith(prefix))
    for group, prefix in {"suites": "steps_", "host": "host_"}.items()
} | {
    "accelerator": (
        *("ppo_4096", "population_256", "ppo_brax", "ppo_playground", "ppo_playground_recipe", "sac"),
        *("dqn_4096", "sac_256", "pqn_512"),
    ),
    "arms": ("ppo_4096", "pqn_512", "population_256", "ppo_brax", "dqn_4096"),
}


class Arm(NamedTuple):
    """A way to run the same scenario on an accelerator.

    Attributes:
        overrides: hydra overrides beside the scenario's.
        environment: variables of the process.
    """

    overrides: tuple[str, ...] = ()
    environment: dict[str, str] = {}  # noqa: RUF012


_GRAPHS = "--xla_gpu_enable_command_buffer="
# What `--arms` measures in place of other frameworks, each beside the default.
ARMS = {
    "stoix_like": Arm(),
    "bfloat16": Arm(("arch.compute_dtype=bfloat16",)),
    "fused": Arm(("arch.fused_networks=true",)),
    "fused, bfloat16": Arm(("arch.fused_networks=true", "arch.compute_dtype=bfloat16")),
    "CUDA graphs of loops": Arm(environment={"XLA_FLAGS": f"{_GRAPHS}+WHILE"}),
    "unrolled CUDA graphs": Arm(
        environment={"XLA_FLAGS": f"{_GRAPHS}+WHILE --xla_gpu_command_buffer_unroll_loops=true"}
    ),
    "no CUDA graphs": Arm(environment={"XLA_FLAGS": _GRAPHS}),
    "optimisation level O1": Arm(environment={"JAX_OPTIMIZATION_LEVEL": "O1"}),
}


class KernelGoal(NamedTuple):
    """A bound on one of our counts: a number, or a share of the same count of another program.

    Attributes:
        target: the device.
        scenario: the scenario.
        row: the count.
        bound: the largest count, or its largest ratio to that of `of`.
        of: scenario and framework to compare with.
        arm: our program, one of `KERNEL_ARMS`.
    """

    target: str
    scenario: str
    row: str
    bound: float
    of: tuple[str, str] | None = None
    arm: str = "stoix_like"

    def line(self, counts: dict[str, Any]) -> str:
        """Return whether the goal is met, as a line of a list; empty if it was not counted."""
        ours = counts.get(self.scenario, {}).get(self.arm, {}).get(self.row)
        other = 1.0 if self.of is None else counts.get(self.of[0], {}).get(self.of[1], {}).get(self.row)
        if ours is None or other is None:
            return ""
        of = "" if self.of is None else f" x {self.of[1] if self.of[1] != 'stoix_like' else self.of[0]}"
        reached = ours / other
        met = "met" if reached <= self.bound else "missed"
        shown = f"{reached:,.0f}" if reached >= 100 else f"{reached:.3g}"
        arm = "" if self.arm == "stoix_like" else f", {self.arm}"
        return f"- {self.scenario}{arm}, {self.row}: ≤ {self.bound:,.4g}{of}: {shown}, {met}"


KERNEL_DQN = ("arch.total_num_envs=4096", "arch.total_timesteps=1e7", "system.total_buffer_size=409600")
KERNEL_SAC = ("arch.total_num_envs=256", "arch.total_timesteps=1e6", "system.total_buffer_size=1e5")
KERNEL_PQN = (
    *("system=q_learning/ff_pqn", "env=gymnax/cartpole", "arch.total_num_envs=512", "arch.total_timesteps=1e7"),
    "network.actor_network.pre_torso.layer_sizes=[64,64]",
    *("system.rollout_length=32", "system.epochs=4", "system.num_minibatches=16"),
)
REJAX_PQN = {
    "env": "CartPole-v1",
    "num_envs": 512,
    "num_steps": 32,
    "num_epochs": 4,
    "num_minibatches": 16,
    "total_timesteps": 10_000_000,
}
# PPO of 64 x 64 tanh; a lone member of the population, for its goal.
KERNEL_PPO = ("arch.total_num_envs=4096", "arch.total_timesteps=2e7", "system.num_minibatches=16")
# What `make bench-aot` compiles.
KERNEL_SCENARIOS = {
    "ppo_256": SCENARIOS["ppo_4096"],
    "ppo_4096": Scenario(
        (*PPO_SMALL, *KERNEL_PPO),
        peers={
            "rejax": rejax_settings(
                REJAX_PPO | {"num_envs": 4096, "num_minibatches": 16, "total_timesteps": 20_000_000}
            )
        },
    ),
    "ppo_small": Scenario((*PPO_SMALL, "arch.total_timesteps=1e5")),
    "population_256": SCENARIOS["population_256"],
    "ppo_brax": SCENARIOS["ppo_brax"],
    "dqn": Scenario(
        (*DQN, *KERNEL_DQN),
        peers={
            "rejax": rejax_settings(
                REJAX_DQN | {"num_envs": 4096, "buffer_size": 409_600, "total_timesteps": 10_000_000}, "DQN"
            )
        },
    ),
    "sac": Scenario(
        (*SAC, *KERNEL_SAC),
        peers={"rejax": rejax_settings(REJAX_SAC | {"num_envs": 256, "total_timesteps": 1_000_000}, "SAC")},
    ),
    "pqn": Scenario(KERNEL_PQN, peers={"rejax": rejax_settings(REJAX_PQN, "PQN")}),
    "pixels": Scenario((*PPO_PIXELS[:5], *KERNEL_PPO)),
}
# Those of them that are measured as well, on an accelerator: with as few random steps as rejax takes, or one of every
# environment, and a budget of whole rollouts, which rejax would round up and we down.
_PQN_STEPS = 128 * 512 * 32
SCENARIOS |= {
    **{
        f"{name}_{num_envs}": replace(
            KERNEL_SCENARIOS[name],
            overrides=(*KERNEL_SCENARIOS[name].overrides, f"system.warmup_steps={warmup}"),
            on_cpu=False,
        )
        for name, num_envs, warmup in (("dqn", 4096, 1), ("sac", 256, 4))
    },
    "pqn_512": Scenario(
        (*KERNEL_PQN, f"arch.total_timesteps={_PQN_STEPS}"),
        peers={"rejax": rejax_settings(REJAX_PQN | {"total_timesteps": _PQN_STEPS}, "PQN")},
        on_cpu=False,
    ),
}
# Our programs that are compiled for GPUs.
KERNEL_ARMS = {name: arm.overrides for name, arm in ARMS.items() if not arm.environment}
KERNEL_GOALS = (
    *(
        KernelGoal("h200", "ppo_4096", row, bound)
        for row, bound in {
            **{"rollout": 14, "returns": 30, "minibatch": 42, "epoch": 10, "rest": 50, "launches": 4700},
            "temporary": 100,
        }.items()
    ),
    KernelGoal("h200", "population_256", "launches", 1.1, ("ppo_small", "stoix_like")),
    KernelGoal("h200", "population_256", "launches", 1200, arm="fused"),
    KernelGoal("h200", "sac", "launches", 120),
    # 25 GiB.
    KernelGoal("h200", "ppo_256", "megabytes", 26_844, arm="fused"),
    KernelGoal("h200", "ppo_256", "launches", 2500, arm="fused"),
    *(
        KernelGoal("h200", name, "predicted", 1 / times, (name, "rejax"), arm)
        for name, times in {"ppo_256": 2.5, "pqn": 1.5, "dqn": 2.0, "sac": 2.0}.items()
        for arm in ("fused", "fused, bfloat16")
    ),
    # Half of what it was in float32, with padded images.
    KernelGoal("h200", "pixels", "megabytes", 255_500, arm="bfloat16"),
    *(KernelGoal("v5e-1", name, "cost_per_step", 1, (name, "rejax")) for name in ("ppo_4096", "sac", "dqn", "pqn")),
)
