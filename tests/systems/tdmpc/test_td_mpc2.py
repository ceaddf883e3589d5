from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Axes, Observation
from stoix_like.lab.searches import search_episode
from stoix_like.systems.tdmpc.anakin.td_mpc2 import TDMPC2
from stoix_like.systems.tdmpc.tdmpc_types import TDMPC2Params, alive, decay
from stoix_like.systems.tdmpc.world_model import ImplicitModel
from stoix_like.utils.replay import Step
from support.algorithms import make_algorithm, with_methods
from support.compiled import run
from support.set_ups import setup_of
from support.small_tdmpc import SMALL

# Three sequences of three steps: no end, truncated after the first step, terminated after the second.
TERMINATED = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0]], bool)
TRUNCATED = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], bool)


def steps_of(rng, **changes):
    view, after = (Observation(jnp.asarray(rng.normal(size=(3, 3, 3)), jnp.float32)) for _ in range(2))
    action = jnp.asarray(rng.uniform(-2.0, 2.0, (3, 3, 1)), jnp.float32)
    reward = jnp.asarray(rng.normal(size=(3, 3)), jnp.float32)
    return Step(view, action, reward, jnp.asarray(TERMINATED), jnp.asarray(TRUNCATED), after)._replace(**changes)


@pytest.fixture
def tdmpc2():
    setup = setup_of("system=tdmpc/td_mpc2", "env=gymnax/pendulum", *SMALL, "system.gamma=0.5")
    return make_algorithm(setup, axes=Axes())


def test_truncated_steps_bootstrap_and_terminated_ones_do_not():
    """Successors are worth 8 and 12 to two critics: targets are 1 + 1/2 8 = 5, and 1 where the episode terminates."""
    model = with_methods(
        ImplicitModel(*[None] * 7),
        represent=lambda self, params, observation: observation.agent_view,
        policy=lambda self, params, latent: SimpleNamespace(sample=lambda seed: latent),
        to_vector=lambda self, action: action,
        two_values=lambda self, params, latent, action, key: latent * jnp.asarray([[[8.0, 12.0]]]),
    )
    tdmpc2 = TDMPC2(SimpleNamespace(gamma=0.5), None, model, *[None] * 5)
    ones = jnp.ones((3, 3, 1))
    steps = steps_of(np.random.default_rng(0), reward=ones[..., 0], next_observation=Observation(ones))
    latent, target = run(lambda key: tdmpc2.targets(TDMPC2Params((), (), ()), steps, key), jax.random.key(0))
    np.testing.assert_array_equal(latent, ones)
    np.testing.assert_allclose(target, [[5, 5, 5], [5, 5, 1], [5, 5, 5]])


def test_steps_and_latents_belong_to_the_first_episode():
    """Of the truncated sequence, the latent of the true successor exists; behind a terminated step there is none."""
    step, latent = alive(steps_of(np.random.default_rng(0)))
    np.testing.assert_array_equal(step, [[1, 1, 1], [1, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(latent, [[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(decay(0.5, 3), [[1.0], [0.5], [0.25]])


@pytest.mark.slow
def test_nothing_is_learned_from_what_follows_an_end(tdmpc2):
    """Other steps behind the ends of the last two sequences change no loss; other ones before do."""
    rng = np.random.default_rng(1)
    steps, others = steps_of(rng), steps_of(rng)
    # All heads start at zero, and would hide differences.
    params, actor = jax.jit(tdmpc2.model.init)(jax.random.key(0), Observation(jnp.ones((2, 3))))
    noise = lambda x: x + jnp.asarray(rng.normal(size=x.shape), x.dtype)  # noqa: E731
    params, actor = jax.tree.map(noise, (params, actor))
    percentiles, key = jnp.zeros(2), jax.random.key(0)

    @jax.jit
    def losses(steps):
        targets = tdmpc2.targets(TDMPC2Params(params, params.q, actor), steps, key)
        loss, (_, latent) = tdmpc2.model_loss(params, steps, *targets, key)
        return loss, tdmpc2.policy_loss(actor, params, percentiles, latent, steps, key)[0]

    def mixed(takes_others):
        flags = {name: getattr(steps, name) for name in ("terminated", "truncated")}
        choose = lambda a, b: jnp.where(takes_others.reshape(3, 3, *[1] * (a.ndim - 2)), b, a)  # noqa: E731
        return jax.tree.map(choose, steps, others)._replace(**flags)

    behind = np.array([[0, 0, 0], [0, 1, 0], [0, 1, 1]], bool)
    np.testing.assert_allclose(losses(mixed(behind)), losses(steps), rtol=1e-5)
    assert all(abs(a - b) > 1e-3 for a, b in zip(losses(mixed(~behind)), losses(steps), strict=True))


@pytest.mark.slow
def test_plans_are_no_part_of_the_policy_of_a_run(tmp_path):
    """A loaded policy is feed-forward, and evaluations without plans act like it."""
    sizes = ["arch.total_num_envs=4", "arch.total_timesteps=256", "arch.num_evaluation=1", "logger=silent"]
    overrides = ["env=gymnax/pendulum", *SMALL, "system.epochs=1", *sizes]
    run_dir = stoix_like.train("tdmpc/td_mpc2", overrides, run_dir=tmp_path / "run").run_dir
    assert stoix_like.load_policy(run_dir)(np.zeros((5, 3), np.float32)).shape == (5, 1)
    plain, planned = (stoix_like.evaluate(run_dir, 2, simulations=number) for number in (0, 2))
    assert plain["episode_return_mean"] != planned["episode_return_mean"]
    found = search_episode(run_dir).found
    assert found.candidates.shape == (200, 2, 1)
    np.testing.assert_allclose((found.weights * found.action_values).sum(-1), found.value, rtol=1e-5)
    assert (found.action_values[:, 0] >= found.action_values[:, 1]).all()
