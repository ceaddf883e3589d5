import jax
import numpy as np
import pytest

from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import Agent, Axes
from stoix_like.errors import ConfigError
from stoix_like.run.population.members import convert_values, float_fields
from stoix_like.run.set_up.influence import effective
from stoix_like.schema import flat_hints, get_value
from support import disco, small_tdmpc, tiny_dreamer
from support.set_ups import setup_of
from support.systems import SYSTEMS, environment, needs_examples, schema

DQN = "q_learning/ff_dqn"
NUM_UPDATES = 6
# Limits and thresholds that the data of a few updates do not reach, and a weight whose scale Adam ignores.
MAY_BE_INERT = {
    *("max_abs_reward", "max_grad_norm", "vf_coef", "clip_rho_threshold", "clip_pg_rho_threshold", "clip_value_min"),
    *("max_action_change", "change_penalty", "huber_loss_parameter", "weight_max", "max_scaled_return"),
}


def set_up_small(system, *overrides):
    common = [f"system={system}", environment(system), "arch.total_num_envs=8", "logger=silent"]
    return setup_of(*common, *disco.overrides(system), *overrides)


@pytest.mark.slow
def test_what_nothing_depends_on_is_noted():
    names = ["gamma", "priority_exponent", "importance_sampling_exponent", "evaluation_epsilon"]
    lists = ", ".join(f"{name}: [0.1, 0.2]" for name in names)
    setup = set_up_small(DQN, f"arch.population.hyperparams={{{lists}}}", "arch.population.mode=zip")
    notes = [note for note in setup.plan.notes if "hyperparams" in note]
    assert notes == [
        f"arch.population.hyperparams.{name} has no effect on training in this configuration" for name in names[1:]
    ]
    # With priorities, their exponents have one.
    setup = set_up_small("q_learning/ff_dqn", "system.prioritised=true")
    assert effective(setup.parts, setup.env, names) == set(names) - {"evaluation_epsilon"}


def test_settings_of_selections_that_are_not_made_are_noted():
    notes = set_up_small("ppo/ff_ppo", "arch.population.pbt.fraction=0.5").plan.notes
    assert "arch.population.pbt.fraction=0.5 has no effect with arch.population.pbt.every_evals=null" in notes


@pytest.mark.slow
def test_a_float_that_is_null_alone_may_vary():
    setup = set_up_small("ddpg/ff_td3", "arch.population.hyperparams={max_exploration_noise: [0.2, 0.5]}")
    assert not [note for note in setup.plan.notes if "max_exploration_noise has no effect" in note]


def tenfold(setup, name):
    """Return ten times the value of a hyperparameter, or another one that is allowed; None if there is none."""
    value = get_value(setup.config.system, name)
    for other in (10.0 * value, value / 10.0, 0.5):
        try:
            (converted,) = convert_values(setup.config.system, name, [other])
        except ConfigError:
            continue
        if converted != value:
            return converted
    return None


def train(setup, hyperparams):
    inference = setup.parts._replace(spec=setup.spec._replace(axes=Axes(())))
    system, key, env = inference.build_system(hyperparams), jax.random.key(1), setup.env
    state = start_episodes(env, system, jax.random.split(key, setup.spec.num_envs))

    def step(carry, key, learns):
        agent, state = carry
        length = setup.config.system.rollout_length
        state, (trajectory, _) = rollout(env, system.act, agent.shared, state, key, length, False)
        agent = system.observe(agent, trajectory)
        return (system.update(agent, trajectory, key)[0] if learns else agent, state), None

    carry = system.init(key, state.timestep), state
    warmup = setup.config.system.warmup_steps // setup.config.system.rollout_length
    for keys, learns in ((jax.random.split(key, warmup), False), (jax.random.split(key, NUM_UPDATES), True)):
        carry, _ = jax.lax.scan(lambda carry, key, learns=learns: step(carry, key, learns), carry, keys)
    assert isinstance(carry[0], Agent)
    return carry[0].shared


def sizes_of(system):
    if system == "dreamer/dreamer_v3":
        return [*tiny_dreamer.NETWORK, *tiny_dreamer.SIZES]
    known = flat_hints(schema(system))
    replays = {"warmup_steps": 48, "epochs": 2, "total_buffer_size": 1024, "total_batch_size": 16, "rollout_length": 4}
    sizes = replays if "total_buffer_size" in known else {"rollout_length": 16}
    if "sequence_period" in known:
        sizes |= {"sequence_period": 4, "sequence_length": 8, "burn_in_length": 4, "horizon": 4}
    # Rainbow explores by noise in its weights, and its epsilon decays from 0 to 0.
    sizes |= {"initial_epsilon": 0.5}
    # Percentiles of values matter where their distance is above the least.
    small = [*small_tdmpc.NETWORK, *small_tdmpc.PLANS, "system.min_return_range=1e-4"] if "horizon" in known else []
    return [*small, *(f"system.{key}={value}" for key, value in sizes.items() if key in known)]


@pytest.mark.slow
@pytest.mark.parametrize("system", [system for system in SYSTEMS if not needs_examples(system)])
def test_every_float_changes_training_or_is_known_not_to(system):
    sizes = sizes_of(system)
    config = set_up_small(system, *sizes).config.system
    steps = 8 * (config.warmup_steps + NUM_UPDATES * config.rollout_length)
    setup = set_up_small(system, *sizes, f"arch.total_timesteps={steps}")
    config = setup.config
    floats = [name for name in float_fields(type(config.system)) if get_value(config.system, name) is not None]
    others = {name: other for name in floats if (other := tenfold(setup, name)) is not None}
    names = list(others)
    used = effective(setup.parts, setup.env, names)
    # The first member is the configuration; in each other one, one hyperparameter differs.
    columns = {name: np.full(len(names) + 1, get_value(config.system, name), np.float32) for name in names}
    for row, name in enumerate(names, start=1):
        columns[name][row] = others[name]
    shared = jax.jit(jax.vmap(lambda hyperparams: train(setup, hyperparams)))(columns)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(shared)]
    equal = {name for row, name in enumerate(names, start=1) if all(np.array_equal(x[row], x[0], True) for x in leaves)}
    inert = set(names) - used
    assert inert <= equal
    assert equal - inert <= MAY_BE_INERT
