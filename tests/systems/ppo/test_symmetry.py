"""Tests of mirrored steps."""

import jax.numpy as jnp
import mirrors
import numpy as np
import pytest

from stoix_like.base_types import Observation, Transition
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.run.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.systems.actor_critic import OnPolicyTransition
from stoix_like.systems.ppo.symmetry import append_mirrored, make_symmetry, no_symmetry


def test_mirrored_steps_are_normalised_and_keep_the_targets_of_the_originals():
    view, rows = jnp.arange(12.0).reshape(2, 2, 3), jnp.arange(4.0)
    action, flags = jnp.asarray([[[1.0], [2.0]], [[3.0], [4.0]]]), jnp.zeros((2, 2), bool)
    observation = Observation(view)
    steps = Transition(observation, action, flags, flags, flags, observation, flags, ())
    batch = OnPolicyTransition(Observation(view.reshape(4, 3) - 1.0), action.reshape(4, 1), rows, (), rows, 2.0 * rows)
    normalize = lambda obs: obs._replace(agent_view=obs.agent_view - 1.0)  # noqa: E731
    both = append_mirrored(mirrors.pendulum, steps, batch, normalize)
    # The third step has the view 6, 7, 8 and the action 3; its copy -7 and -8 before normalisation.
    np.testing.assert_array_equal(both.obs.agent_view[jnp.asarray([2, 6])], [[5.0, 6.0, 7.0], [5.0, -8.0, -9.0]])
    np.testing.assert_array_equal(both.action[jnp.asarray([2, 6])], [[3.0], [-3.0]])
    for name, value in (("log_prob", rows), ("advantage", rows), ("target", 2.0 * rows)):
        np.testing.assert_array_equal(getattr(both, name), jnp.tile(value, 2))
    assert append_mirrored(no_symmetry, steps, batch, normalize) is batch
    masked = steps._replace(observation=observation._replace(action_mask=jnp.ones((2, 2, 1), bool)))
    with pytest.raises(ConfigError, match=r"system.symmetry: action masks have no mirrored copies"):
        append_mirrored(mirrors.pendulum, masked, batch, normalize)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("absent", r"cannot be imported \(AttributeError: module 'mirrors' has no attribute 'absent'\): it must be"),
        ("truncated", "returns shapes "),
        ("leaves", r"failed \(SystemExit: 0, .*mirrors.py:\d+\): it must be a function \(agent_view, action\) ->"),
        ("fails", r"failed \(KeyError: 'absent', .*mirrors.py:\d+\): "),
        ("nothing", "returns None: it must be a function"),
        ("one_argument", r"failed \(TypeError: one_argument\(\) takes 1 positional argument but 2 were given"),
        ("pairs_of_numbers", "returns a int"),
        ("__name__", "is not a function"),
    ],
)
def test_functions_that_cannot_mirror_are_refused(name, problem):
    with pytest.raises(ConfigError, match=rf"system.symmetry=mirrors.{name} {problem}"):
        make_symmetry(f"mirrors.{name}", Box(-1.0, 1.0, (3,)), Box(-2.0, 2.0, (1,)))


def test_no_symmetry_is_the_default_and_cells_have_none():
    assert make_symmetry(None, Box(-1.0, 1.0, (3,)), Discrete(2)) is no_symmetry
    with pytest.raises(ConfigError, match=r"system.symmetry=a.b: states of cells have no mirrored copies"):
        set_up(parse_config(compose_config(["system=ppo/rec_ppo", "+system.symmetry=a.b"])))
    with pytest.raises(ConfigError, match=r"system.target_kl .* mirrored steps of system.symmetry=mirrors.pendulum"):
        set_up(
            parse_config(
                compose_config(["env=gymnax/pendulum", "system.symmetry=mirrors.pendulum", "system.target_kl=0.01"])
            )
        )


@pytest.mark.slow
def test_a_policy_learns_from_mirrored_steps():
    overrides = [
        *("env=gymnax/pendulum", "arch.total_num_envs=4", "system.rollout_length=16", "arch.total_timesteps=256"),
        *("system.symmetry=mirrors.pendulum", "system.normalize_observations=true", "arch.compile_cache=false"),
        *("system.num_minibatches=2", "arch.absolute_metric=false"),
    ]
    loop = TrainingLoop(set_up(parse_config(compose_config(overrides))), MultiLogger([]))
    assert np.isfinite(loop.advance(2)["train/policy_loss"])
    # Statistics are those of what was seen: 2 updates × 4 environments × 16 steps.
    assert float(loop.state.shared.statistics.count) == 128
