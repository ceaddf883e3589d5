"""Tests of action masks in every system for discrete actions.

In `masked`, one of three actions is illegal in each step; it costs 1 and ends the episode, and everything else is free.
In `masked_pair`, so are one of two and one of three choices of a multi-discrete action, and in `masked_parts` of a
dictionary.
"""

import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, OnlineAndTarget
from stoix_like.envs import suites
from stoix_like.loggers import MultiLogger
from stoix_like.networks.distributions import Categorical, mask_logits
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.replay import Batch
from support import disco
from support.algorithms import make_algorithm
from support.compiled import run
from support.selections import select
from support.set_ups import setup_of
from support.systems import SYSTEMS, has_replay, needs_examples, takes_discrete
from support.tiny_dreamer import NETWORK

Q_LEARNING = ["ff_c51", "ff_ddqn", "ff_dqn", "ff_dqn_reg", "ff_iqn", "ff_mdqn", "ff_qr_dqn", "ff_rainbow"]
DISCRETE = [system for system in SYSTEMS if takes_discrete(system)]
B, A, ATOMS = 16, 3, 4


@pytest.fixture(autouse=True)
def masked(monkeypatch):
    monkeypatch.setitem(suites.SUITES, "masked", suites.Suite("support.masked", "jax", ""))


def prepare(system, *overrides, scenario="masked"):
    environment = ["env=gymnax", "env.env_name=masked", f"env.scenario.name={scenario}"]
    sizes = ["arch.total_num_envs=8", "arch.num_devices=1", "network.actor_network.pre_torso.layer_sizes=[8]"]
    if system == "dreamer/dreamer_v3":
        sizes += [*NETWORK, "system.sequence_length=16", "system.total_batch_size=8", "system.train_ratio=4"]
    if system == "q_learning/rec_r2d2":
        sizes += ["system.sequence_length=16", "system.sequence_period=16"]
    if system == "disco_rl/ff_disco103":
        sizes += ["system.sequence_length=16", "system.sequence_period=16", "system.total_batch_size=8"]
    return setup_of(f"system={system}", *environment, *sizes, *disco.overrides(system), *overrides)


PAIRS = [("ppo/ff_ppo_penalty", "masked_pair"), ("ppo/ff_ppo", "masked_parts")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "scenario"), [*((system, "masked") for system in DISCRETE if not needs_examples(system)), *PAIRS]
)
def test_no_illegal_action_is_ever_taken(system, scenario):
    """Without the mask, a third of the random actions of `masked` would be illegal, and two thirds of the pairs.

    Random start steps and sticky actions choose legal actions, too.
    """
    on_policy = not has_replay(system)
    sizes = [] if on_policy else ["system.warmup_steps=48", "system.total_buffer_size=4096"]
    pairs = ["env.random_start_steps=1", "env.sticky_actions=0.3"] if scenario != "masked" else []
    sizes += ["system.rollout_length=16", "arch.total_timesteps=1152", "arch.num_evaluation=2"]
    sizes += ["arch.num_eval_episodes=16", "arch.compile_cache=false", "arch.absolute_metric=false"]
    run = prepare(system, *sizes, *pairs, scenario=scenario)
    loop = TrainingLoop(run, MultiLogger([]))
    loop.train()
    returns = {
        name: value for record in loop.history for name, value in record.items() if name.endswith("episode_return_min")
    }
    assert set(returns) == {"train/episode_return_min", "eval/episode_return_min"}
    for record in loop.history:
        for name in returns:
            assert record.get(name, 0.0) == 0.0
        assert all(np.isfinite(value) for name, value in record.items() if name.startswith("train/"))
    if not on_policy:
        # The warm-up, too.
        local = loop.state.shards.local
        buffer = getattr(local, "buffer", local)
        stored = buffer.experience if hasattr(buffer, "experience") else buffer.entries
        assert float(getattr(stored, "steps", stored).reward.min()) == 0.0
    entropy = loop.history[-1].get("train/entropy")
    if entropy is not None and scenario != "masked_parts" and system != "dreamer/dreamer_v3":
        # Two of three actions are legal; of the pairs, one times two. In imagination, masks are predicted.
        assert 0.0 < entropy <= math.log(2.0) + 1e-5


class Shown:
    """A network that returns the view of the observation, as the outputs of each system's head."""

    def __init__(self, system):
        self._outputs = {
            "ff_c51": lambda policy, view: (policy, view, jnp.broadcast_to(jnp.linspace(-1.0, 1.0, ATOMS), (B, ATOMS))),
            "ff_qr_dqn": lambda policy, view: (policy, view.swapaxes(1, 2)),
            "ff_iqn": lambda policy, view: (policy, view.swapaxes(1, 2), None),
        }.get(system.replace("rainbow", "c51"), lambda policy, view: policy)

    def apply(self, params, observation, head_kwargs=None, rngs=None):
        return self._outputs(SimpleNamespace(preferences=observation.agent_view.mean(-1)), observation.agent_view)


def algorithm(system, network):
    names = {"q_learning/ff_qr_dqn": ["quantiles"], "q_learning/ff_iqn": ["online_quantiles", "target_quantiles"]}
    found = make_algorithm(prepare(system, *(f"system.num_{name}={ATOMS}" for name in names.get(system, []))))
    object.__setattr__(found, "axes", Axes())
    object.__setattr__(found, "network", network)
    return found


def batch_of(mask, inflation):
    """Draw steps whose next observations have higher values for illegal actions."""
    keys = jax.random.split(jax.random.key(1), 3)
    now, then = (jax.random.normal(key, (B, A, ATOMS)) for key in keys[:2])
    legal = jnp.arange(A)[None] != jnp.arange(B)[:, None] % A
    then = jnp.where(legal[..., None], then, then + inflation * jnp.arange(ATOMS)[None, None])
    reward = jax.random.normal(keys[2], (B,)) / 10
    ones, successor = jnp.ones((B,)), Observation(then, legal if mask else None)
    observation, action = Observation(now, jnp.ones((B, A), bool)), jnp.zeros((B,), jnp.int32)
    return Batch(observation, action, reward, 0.9 * ones, successor, ones, None)


@pytest.mark.parametrize("name", select(Q_LEARNING, quick=["ff_c51", "ff_dqn"]))
def test_values_of_illegal_actions_do_not_count_in_the_target(name):
    dqn = algorithm(f"q_learning/{name}", Shown(name))

    @functools.partial(jax.jit, static_argnums=0)
    def losses(mask, inflation):
        return dqn.losses(OnlineAndTarget(None, None), batch_of(mask, inflation), jax.random.key(0))[0]

    assert np.isfinite(losses(True, 0.0)).all()
    np.testing.assert_allclose(losses(True, 0.0), losses(True, 5.0), rtol=1e-6)
    # Without a mask, they do.
    assert not np.allclose(losses(False, 0.0), losses(False, 5.0), rtol=1e-2)


class Table(Shown):
    """Returns the row of the parameters that the view counts: 0, now; 1, then."""

    def apply(self, params, observation, head_kwargs=None, rngs=None):
        view = params[observation.agent_view[0].astype(jnp.int32)]
        return self._outputs(SimpleNamespace(preferences=view.mean(-1)), view)


ONLINE, TARGET = 0, 1
NOW, THEN = 0, 1
READ = {name: {(ONLINE, NOW), (TARGET, THEN)} for name in Q_LEARNING} | {
    "ff_mdqn": {(ONLINE, NOW), (TARGET, NOW), (TARGET, THEN)},  # Vieillard et al. 2020, equation 1
    "ff_ddqn": {(ONLINE, NOW), (ONLINE, THEN), (TARGET, THEN)},  # van Hasselt et al. 2016, equation 4
    "ff_rainbow": {(ONLINE, NOW), (ONLINE, THEN), (TARGET, THEN)},
}


@pytest.mark.parametrize("name", select(Q_LEARNING, quick=["ff_ddqn", "ff_mdqn"]))
def test_losses_read_the_parameters_of_their_paper(name):
    dqn = algorithm(f"q_learning/{name}", Table(name))
    online, target, other = np.random.default_rng(0).normal(size=(3, 2, B, A, ATOMS))
    now, then = Observation(np.zeros(B)), Observation(np.ones(B))

    @jax.jit
    def losses(*params):
        batch = batch_of(False, 0.0)._replace(observation=now, next_observation=then)
        return dqn.losses(OnlineAndTarget(*params), batch, jax.random.key(0))[0]

    expected, found = losses(online, target), set()
    for place in ((slot, time) for slot in (ONLINE, TARGET) for time in (NOW, THEN)):
        params = [online, target]
        params[place[0]] = np.where(np.arange(2)[:, None, None, None] == place[1], other, params[place[0]])
        if not np.allclose(losses(*params), expected):
            found.add(place)
    assert found == READ[name]


def test_values_of_illegal_actions_do_not_count_in_lambda_returns():
    pqn = algorithm("q_learning/ff_pqn", Shown("ff_pqn"))

    def best(mask, inflation):
        return run(pqn.q, None, batch_of(mask, inflation).next_observation).max(-1)

    np.testing.assert_array_equal(best(True, 0.0), best(True, 5.0))
    assert (best(False, 5.0) > best(False, 0.0)).any()


def test_soft_values_and_entropies_are_over_legal_actions():
    """Equal logits, and one of three actions illegal: the entropy is log 2, and so is its target, times the scale."""
    sac = make_algorithm(prepare("sac/ff_sac_discrete", "system.target_entropy_scale=0.5"))

    def policy(params, observation):
        return Categorical(logits=mask_logits(jnp.zeros((B, A)), observation.action_mask))

    def values(params, observation, rngs=None):
        return SimpleNamespace(preferences=jnp.stack([observation.agent_view.mean(-1)] * 2, -1))

    object.__setattr__(sac, "actor", SimpleNamespace(apply=policy))
    object.__setattr__(sac, "critics", SimpleNamespace(apply=values))

    def evaluate(inflation):
        observation = batch_of(True, inflation).next_observation
        params = SACParams(None, OnlineAndTarget(None, None), jnp.zeros(()))
        return *sac.evaluate_policy(params, None, observation, jax.random.key(0)), sac.target_entropy(observation)

    value, log_prob, target = evaluate(0.0)
    np.testing.assert_allclose(log_prob, -math.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(target, 0.5 * math.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(evaluate(5.0)[0], value, rtol=1e-6)
    assert sac.target_entropy(Observation(jnp.zeros((B, 2)))) == pytest.approx(0.5 * math.log(3.0))
