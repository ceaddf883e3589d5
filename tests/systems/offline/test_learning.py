import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import write_data
from stoix_like.envs import Box, Environment
from stoix_like.envs.environment import restart, transition

SPEED, RADIUS, GOAL, LIMIT = 0.4, 0.68, np.array([1.0, 0.0]), 20


class TwoWays(Environment):
    """From about (-0.9, 0) to (1, 0), which pays 1; the disc around 0 ends the episode without a reward.

    A first step straight on, the mean of those to either side, ends in the disc.
    """

    observation_space = Box(-3.0, 3.0, (2,))
    action_space = Box(-1.0, 1.0, (2,))

    def reset(self, key):
        place = jnp.array([-0.9, 0.0]) + jax.random.uniform(key, (2,), minval=-0.01, maxval=0.01)
        return (place, jnp.zeros((), jnp.int32)), restart(Observation(place))

    def step(self, key, state, action):
        place, time = jnp.clip(state[0] + SPEED * action, -3.0, 3.0), state[1] + 1
        there = jnp.linalg.norm(place - GOAL) < 0.3
        ends = there | (jnp.linalg.norm(place) < RADIUS)
        return (place, time), transition(Observation(place), 1.0 * there, ends, time >= LIMIT)


def record(episodes=200, seed=0):
    """Return episodes of an expert that decides at the start on which side it passes the disc."""
    rng, env = np.random.default_rng(seed), TwoWays()
    step = jax.jit(env.step)
    columns = {name: [] for name in ("observation", "action", "reward", "terminated", "truncated", "valid")}
    for episode in range(episodes):
        state, timestep = env.reset(jax.random.key(1_000 * seed + episode))
        waypoint, ends = np.array([0.0, 1.1 if rng.random() < 0.5 else -1.1]), False
        while not ends:
            place = np.asarray(timestep.observation.agent_view)
            aim = (waypoint if place[0] < -0.1 else GOAL) - place
            action = np.clip(aim / np.linalg.norm(aim) + 0.05 * rng.normal(size=2), -1, 1).astype(np.float32)
            state, timestep = step(None, state, action)
            terminated, truncated = bool(timestep.terminated), bool(timestep.truncated)
            ends = terminated or truncated
            row = (place, action, float(timestep.reward), terminated, truncated, True)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        last = (np.asarray(timestep.next_observation.agent_view), np.zeros(2, np.float32), 0.0, False, False, False)
        for column, value in zip(columns.values(), last, strict=True):
            column.append(value)
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    view = Observation(arrays.pop("observation").astype(np.float32))
    arrays["reward"] = arrays["reward"].astype(np.float32)
    return DataSet(DataHeader(policy="either side"), view, **arrays).with_statistics()


SMALL = [
    *("arch=offline", "arch.num_evaluation=1", "arch.num_eval_episodes=64", "arch.absolute_metric=false"),
    *("arch.num_devices=1", "arch.population.size=5", "arch.seed=0", "arch.total_timesteps=12000", "logger=silent"),
    *("system.actor_lr=1e-3", "network.actor_network.pre_torso.layer_sizes=[64,64]"),
]
FQL = [
    *("system.q_lr=1e-3", "system.distillation_coef=3"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[64,64]" for name in ("flow", "q")),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "two_ways.npz"
    write_data(path, record())
    return path


@pytest.mark.learn
@pytest.mark.parametrize(("system", "options"), [("offline/ff_fql", FQL), ("offline/bc", [])])
def test_a_flow_chooses_one_of_two_ways_where_a_normal_policy_takes_their_mean(data, tmp_path, system, options):
    """The expert gets round in 92 % of its episodes, on either side; the mean of its actions ends in the disc."""
    overrides = [*SMALL, *options, f"system.data={data}", f"hydra.run.dir={tmp_path}/run"]
    result = stoix_like.train(system, overrides, env=TwoWays)
    returns = sorted(member["eval/episode_return_mean"] for member in result.members)
    # Seeds 0 to 4 of the flow: 0.77 to 0.89; of the clone: 0.
    if system == "offline/ff_fql":
        assert returns[0] >= 0.6
    else:
        assert returns[-1] <= 0.2
