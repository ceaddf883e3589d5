import json
from collections import Counter

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

import stoix_like
from stoix_like.base_types import Axes, NetworkOutputs, Observation, System
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.networks.heads import ScalarCriticHead
from stoix_like.networks.torso import MLPTorso
from stoix_like.run.programs.functions import run_programs
from stoix_like.systems import diagnostics
from stoix_like.systems.ddpg.ddpg_types import DDPGOptStates, DDPGParams
from stoix_like.systems.off_policy.actor_critic import OffPolicyShared
from stoix_like.systems.tdmpc.tdmpc_types import TDMPC2Params
from stoix_like.utils.training import clip_by_global_norm
from support.compiled import run
from support.programs import equations
from support.set_ups import setup_of


def test_ranks_of_singular_values():
    """Equal values have all dimensions; 98 and 2 need both for 99 % of their sum, 995 and 5 only one."""
    np.testing.assert_allclose(run(diagnostics.effective_rank, jnp.ones(4)), 4.0, rtol=1e-5)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(run(diagnostics.effective_rank, jnp.asarray([1.0, 3.0])), np.exp(entropy), rtol=1e-5)
    assert [run(diagnostics.srank, jnp.asarray(v)) for v in ([98.0, 2.0], [995.0, 5.0])] == [2.0, 1.0]


def test_the_norm_of_clipped_gradients():
    """Two steps with the gradient (3, 4), of norm 5, which is clipped to 2; a constant norm is its own mean."""
    for limit, norm in ((2.0, 2.0), (7.0, 5.0)):
        optim = optax.chain(clip_by_global_norm(limit), optax.adam(1e-3))
        state, gradient = optim.init(jnp.zeros(2)), jnp.asarray([3.0, 4.0])
        for _ in range(2):
            _, state = optim.update(gradient, state)
        assert diagnostics.gradient_norms(DDPGOptStates((), state)) == {"q": pytest.approx(norm, rel=1e-4)}


def test_optimisers_without_names_count_together_and_targets_do_not():
    """In TD-MPC2, gradients of norms 3 and 4 are one of norm 5; weights of model and policy go from 1 to 3."""
    adam = optax.adam(1e-3)
    states = tuple(adam.update(gradient, adam.init(gradient))[1] for gradient in jnp.diag(jnp.asarray([3.0, 4.0])))
    np.testing.assert_allclose(diagnostics.gradient_norms(states)["network"], 5.0, rtol=1e-4)
    before, after = (
        OffPolicyShared(TDMPC2Params(*[{"params": {"w": jnp.full(1, w)}}] * 3), (), ()) for w in (1.0, 3.0)
    )
    found = diagnostics.diagnose(System(*[None] * 6), Axes(), before, after, None)
    assert found == pytest.approx({"network/weight_norm": 18**0.5, "network/update_ratio": 2.0 / 3.0})


@pytest.mark.parametrize("transposed", [False, True])
def test_singular_values(transposed):
    features = jnp.asarray([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    values = run(diagnostics.singular_values, features.T if transposed else features)
    np.testing.assert_allclose(values, [4.0, 3.0], rtol=1e-5)


def test_features_of_one_direction_have_rank_one():
    """Rounding of 256 singular values that are zero does not count."""
    values = run(diagnostics.singular_values, jnp.linspace(-1.0, 2.0, 256)[:, None] * jnp.linspace(0.1, 1.0, 512)[None])
    assert run(diagnostics.srank, values) == 1.0
    np.testing.assert_allclose(run(diagnostics.effective_rank, values), 1.0, atol=1e-2)


def test_scores_of_units():
    """Mean magnitudes 1, 3 and 0 have the mean 4 / 3."""
    scores = run(diagnostics.dormant_scores, jnp.asarray([[1.0, -2.0, 0.0], [-1.0, 4.0, 0.0]]), Axes())
    np.testing.assert_allclose(scores, [0.75, 2.25, 0.0], rtol=1e-6)


def diagnosed(network, before, after, views):
    def inspect(shared, observation):
        return NetworkOutputs(None, network.apply(shared.params.q_params, observation.agent_view))

    shared = (OffPolicyShared(DDPGParams((), params), (), ()) for params in (before, after))
    return diagnostics.diagnose(System(*[None] * 6, inspect=inspect), Axes(), *shared, Observation(views))


@pytest.mark.slow
def test_diagnostics_of_a_critic():
    """Of two units, the second is off for both observations, and the features are (1, 0) and (2, 0), of rank one.

    The six weights have magnitude 1, and one of them changed by 0.6 in the update.
    """
    network = FeedForwardCritic(ScalarCriticHead(), MLPTorso((2,)))
    torso = {"Dense_0": {"kernel": jnp.asarray([[1.0, -1.0], [1.0, -1.0]]), "bias": jnp.zeros(2)}}
    params = {
        "params": {"torso": torso, "critic_head": {"Dense_0": {"kernel": jnp.ones((2, 1)), "bias": jnp.zeros(1)}}}
    }
    head = {"Dense_0": {"kernel": jnp.asarray([[1.6], [1.0]]), "bias": jnp.zeros(1)}}
    before = {"params": {"torso": torso, "critic_head": head}}
    found = diagnosed(network, before, params, jnp.asarray([[1.0, 0.0], [1.0, 1.0]]))
    expected = {
        "q/weight_norm": 6**0.5,
        "q/update_ratio": 0.6 / 6**0.5,
        "q/dormant_units": 0.5,
        "q/feature_norm": 1.5,
        "q/effective_rank": 1.0,
        "q/srank": 1.0,
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("steps_first", [True, False])
def test_features_are_those_of_all_steps_and_environments(steps_first):
    """Each of 16 environments, or of 16 steps, has a direction of its own; 256 of 4,096 rows have some 16 of each.

    The first rows, and every sixteenth one, have one direction alone in one of the two orders.
    """
    directions = jnp.eye(16)
    features = jnp.tile(directions, (256, 1)) if steps_first else jnp.repeat(directions, 256, axis=0)
    network = FeedForwardCritic(ScalarCriticHead(), MLPTorso(()))
    params = {"params": {"critic_head": {"Dense_0": {"kernel": jnp.ones((16, 1)), "bias": jnp.zeros(1)}}}}
    found = diagnosed(network, params, params, features)
    assert (found["q/srank"], found["q/feature_norm"]) == (16.0, 1.0)
    assert 15.0 < float(found["q/effective_rank"]) <= 16.0


@pytest.mark.slow
def test_updates_cost_no_more_with_diagnostics():
    counts = {}
    for setting in ("false", "true"):
        overrides = ["system=q_learning/ff_dqn", "arch.num_devices=1", f"logger.diagnostics={setting}"]
        setup = setup_of(*overrides, "env=gymnax/cartpole")
        program = next(program for program in run_programs(setup) if program.name == "train")
        traced = equations(program.function.trace(*program.args).jaxpr.jaxpr)
        loops = [eqn for eqn in traced if eqn.primitive.name == "while"]
        inner = (eqn for loop in loops for part in jaxprs_in_params(loop.params) for eqn in equations(part))
        counts[setting] = Counter(eqn.primitive.name for eqn in inner)
    for name in ("gather", "dot_general", "random_bits", "svd"):
        assert counts["true"][name] == counts["false"][name], name
    assert counts["true"]["dot_general"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "networks"),
    [
        ("ppo/ff_ppo", ("actor", "critic")),
        ("q_learning/ff_dqn", ("network",)),
        ("ppo/rec_ppo", ("actor", "critic")),
        ("q_learning/ff_pqn_continuous", ("actor", "critic")),
        ("spo/ff_spo", ("actor", "critic")),
    ],
)
def test_evaluations_record_diagnostics(system, networks, tmp_path):
    overrides = ["arch.total_timesteps=2048", "arch.num_evaluation=2", "arch.num_eval_episodes=2", "logger=silent"]
    overrides += ["logger.diagnostics=true", "arch.total_num_envs=4", "logger.every_updates=1"]
    overrides += ["env=gymnax/pendulum"] if "continuous" in system else []
    stoix_like.train(system, overrides, run_dir=tmp_path / "run")
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    named = {name.split("/")[1] for name in last if name.startswith("diagnostics/")}
    assert named == set(networks)
    for network in networks:
        assert last[f"diagnostics/{network}/weight_norm"] > 0.0
        assert last[f"diagnostics/{network}/update_ratio"] > 0.0
        assert last[f"diagnostics/{network}/effective_rank"] >= 1.0
        assert 0.0 <= last[f"diagnostics/{network}/dormant_units"] < 1.0
