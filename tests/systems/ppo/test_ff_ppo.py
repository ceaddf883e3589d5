import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import Axes, Observation
from stoix_like.envs.suites.probes import PROBES
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.systems.parts.critic_outputs import SCALAR
from stoix_like.systems.parts.kl_rate import FIXED
from stoix_like.systems.parts.symmetry import Mirror
from stoix_like.systems.parts.teacher import Lessons
from stoix_like.systems.ppo.anakin import ff_ppo
from support import on_policy_runs
from support.algorithms import make_algorithm
from support.selections import select
from support.set_ups import loop_of, setup_of, trained

GAMMA = 0.8
SMALL = [
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("actor", "critic")),
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1"),
]
PROBE = [
    *(*on_policy_runs.SMALL, "arch.total_timesteps=40960", "system.num_minibatches=2", f"system.gamma={GAMMA}"),
    *("system.clip_value=false", "system.normalize_rewards=false"),
]
LAYOUTS = {
    "1 device": ["arch.num_devices=1"],
    "2 devices x 2 update batches": ["arch.num_devices=2", "arch.update_batch_size=2"],
}


def values(loop, views):
    nets = loop.setup.spec.networks.critic_network
    critic = FeedForwardCritic(nets.critic_head, nets.pre_torso, nets.input_layer)
    return critic.apply(loop.state.shared.params.critic_params, Observation(jnp.asarray(views)))


@pytest.mark.parametrize(("name", "layout"), select(itertools.product(PROBES, LAYOUTS), quick=[("policy", "1 device")]))
def test_policy_and_critic_learn_the_probes(name, layout):
    probe = PROBES[name]()
    loop = trained(f"env=probe/{name}", *PROBE, *LAYOUTS[layout])
    assert loop.history[-1]["eval/episode_return_mean"] == pytest.approx(probe.optimal_return, abs=0.05)
    keys = jax.random.split(jax.random.key(1), 16)
    first_views = jax.vmap(lambda key: probe.reset(key)[1].observation.agent_view)(keys)
    # The critic values the stochastic policy, which loses its variance in the continuous probes.
    tolerance = 0.25 if name.startswith("continuous") else 0.1
    np.testing.assert_allclose(values(loop, first_views), probe.optimal_value(first_views, GAMMA), atol=tolerance)


@pytest.mark.slow
def test_advantages_are_standardised_over_all_shards(monkeypatch):
    """With rewards of different scale in two shards, only their joint advantages have mean 0 and deviation 1."""
    recorded = []
    targets = ff_ppo.PPO.targets

    def spy(self, agent, trajectory, *args):
        scale = 1.0 + 9.0 * jax.lax.axis_index("batch")
        steps = trajectory.transitions._replace(reward=scale * trajectory.transitions.reward)
        agent, batch, metrics = targets(self, agent, trajectory._replace(transitions=steps), *args)
        moments = jnp.stack([jnp.mean(batch.advantage), jnp.mean(batch.advantage**2)])
        jax.debug.callback(
            lambda all_moments: recorded.append(np.asarray(all_moments)), jax.lax.all_gather(moments, "batch")
        )
        return agent, batch, metrics

    monkeypatch.setattr(ff_ppo.PPO, "targets", spy)
    overrides = [*SMALL, "arch.update_batch_size=2", "arch.num_devices=1"]
    loop = loop_of(*overrides)
    loop.advance(1)
    jax.effects_barrier()
    mean, square = recorded[0].reshape(-1, 2, 2)[0].mean(axis=0)
    assert mean == pytest.approx(0.0, abs=1e-4)
    assert square == pytest.approx(1.0, abs=1e-3)
    # A single shard is far from deviation 1: the second has most of the variance.
    assert abs(recorded[0].reshape(-1, 2, 2)[0][:, 1] - 1.0).min() > 0.3


@pytest.mark.slow
def test_observation_statistics_update_in_training_and_freeze_in_evaluation():
    loop = loop_of(*SMALL, "system.normalize_observations=true", "env=gymnax/pendulum")
    loop.advance(3)
    statistics = jax.device_get(loop.state.shared.statistics)
    # 3 updates of 8 environments x 128 steps.
    assert float(statistics.count) == 3 * 8 * 128
    # Cosine and sine of an angle, and an angular speed of at most 8.
    assert (np.abs(statistics.mean) <= [1, 1, 8]).all()
    assert (statistics.std[:2] < 1).all()
    assert statistics.std[2] > 1
    loop.evaluate()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(loop.state.shared.statistics), statistics)


@pytest.mark.slow
def test_variants_replace_the_losses_by_losses_of_each_step_or_their_means():
    pi = SimpleNamespace(entropy=lambda seed: jnp.array([1.0, 3.0]))
    variant = SimpleNamespace(
        config=SimpleNamespace(vf_coef=2.0, ent_coef=0.5),
        networks=SimpleNamespace(
            arrange=lambda batch: batch, both=lambda params, obs: (pi, jnp.zeros(2)), output=SCALAR
        ),
        policy_loss=lambda pi, behaviour, batch: (jnp.float32(3.0), {"mine": jnp.array([True, False])}),
        value_loss=lambda value, batch: jnp.array([0.0, 0.5]),
        rate=FIXED,
        lessons=Lessons(),
        mirror=Mirror(),
    )
    batch = SimpleNamespace(obs=(), target=jnp.zeros(2), lesson=())
    loss, metrics = ff_ppo.PPO.loss(variant, (), (), batch, jax.random.key(0))
    assert float(loss) == 3.0 + 2.0 * 0.25 - 0.5 * 2.0
    assert {name: float(mean) for name, mean in metrics.items()} == {
        "policy_loss": 3.0, "value_loss": 0.25, "entropy": 2.0, "mine": 0.5
    }  # fmt: skip


@pytest.mark.slow
def test_vtrace_corrects_for_the_policy_lag():
    """With ratios of one it is generalised advantage estimation; a ratio of one half halves the last error."""

    def batch(vtrace, log_half):
        overrides = ["system.standardize_advantages=false", "system.rollout_length=8", "arch.total_num_envs=4"]
        setup = setup_of(*SMALL, *overrides, f"system.vtrace={vtrace}")
        ppo = make_algorithm(setup, axes=Axes())

        @jax.jit
        def targets(key, log_half):
            state = start_episodes(setup.env, ppo, jax.random.split(key, 4))
            agent = ppo.init(key, state.timestep)
            _, (trajectory, _) = rollout(setup.env, ppo.act, agent.shared, state, key, 8)
            steps = trajectory.transitions
            stale = trajectory._replace(transitions=steps._replace(extras=steps.extras + log_half))
            return ppo.targets(agent, stale, key)[1]

        found = targets(jax.random.key(0), log_half)
        return found._replace(**{name: getattr(found, name).reshape(8, 4) for name in ("value", "advantage", "target")})

    plain, same, stale = batch("false", 0.0), batch("true", 0.0), batch("true", jnp.log(2.0))
    np.testing.assert_allclose(same.advantage, plain.advantage, atol=1e-4)
    np.testing.assert_allclose(same.target, plain.target, atol=1e-4)
    np.testing.assert_allclose((stale.target - stale.value)[-1], (plain.target - plain.value)[-1] / 2, atol=1e-5)
    np.testing.assert_allclose(stale.advantage[-1], plain.advantage[-1], atol=1e-5)
    assert np.abs(stale.advantage[0] - plain.advantage[0]).max() > 0.1


@pytest.mark.learn
def test_ppo_solves_cartpole():
    overrides = ["env=gymnax/cartpole", "arch.seed=0", "arch.total_timesteps=1.5e5", "arch.num_evaluation=3"]
    loop = trained(*overrides, "arch.compile_cache=false")
    assert loop.summary()["absolute/episode_return_mean"] >= 475


@pytest.mark.parametrize(
    ("length", "options"),
    [(1, ["system.num_minibatches=1"]), (2, ["system.num_minibatches=2", "system.standardize_advantages=minibatch"])],
)
def test_advantages_of_a_single_sample_are_not_standardised(tmp_path, length, options):
    """They would be 0."""
    small = ["arch.total_num_envs=1", "arch.total_timesteps=8", "arch.num_evaluation=1", "logger=silent"]
    with pytest.raises(ConfigError, match="makes the advantage of a single sample 0, .*: use false, or more samples"):
        stoix_like.train("ppo/ff_ppo", [*small, f"system.rollout_length={length}", *options], run_dir=tmp_path / "run")
