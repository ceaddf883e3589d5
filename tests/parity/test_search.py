"""AlphaZero's searches, compared with mctx called directly with the same networks, environments and keys.

The model below is written for CartPole alone, whose episodes last longer than the searches are deep: without packed
nodes and ends of episodes. Both sides run here, in float32, and differ by the rounding of other programs.
"""

import jax
import jax.numpy as jnp
import mctx
import pytest

from stoix_like.architectures.acting import start_episodes
from support.parity import agree
from support.searched_runs import prepare

pytestmark = pytest.mark.slow

SIMULATIONS, DEPTH, GAMMA = 32, 6, 0.97


def direct(az, model, shared, state, key, policy, **options):
    def evaluate(observation):
        pi, value = az.networks.both(shared.params, observation)
        return pi.logits, az.networks.output.value(value)

    def step(params, key, action, embedding):
        keys = jax.random.split(jax.random.key(9), len(action))
        embedding, timestep = model.step(keys, embedding, action)
        logits, value = evaluate(timestep.observation)
        output = mctx.RecurrentFnOutput(
            reward=timestep.reward, discount=jnp.full_like(value, GAMMA), prior_logits=logits, value=value
        )
        return output, embedding

    logits, value = evaluate(state.timestep.observation)
    root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=model.state_of(state.env_state))
    with jax.numpy_rank_promotion("allow"):
        return policy((), key, root, step, SIMULATIONS, max_depth=DEPTH, **options)


@pytest.mark.parametrize("method", ["gumbel", "puct"])
def test_searches_are_those_of_mctx(method):
    numbers = ("system.gamma=0.97", "system.value_scale=0.05", "system.maxvisit_init=5.0", "system.pb_c_init=2.0")
    # The noise of mctx is spread over illegal actions, too: ours is not, see the tests of the search.
    numbers = (*numbers, "system.dirichlet_fraction=0.0")
    search = (f"system.search_method={method}", f"system.num_simulations={SIMULATIONS}", f"system.max_depth={DEPTH}")
    setup, az = prepare("env=gymnax/cartpole", "network=mlp", *search, *numbers)
    options = {
        "gumbel": {
            "policy": mctx.gumbel_muzero_policy,
            "qtransform": lambda tree, node: mctx.qtransform_completed_by_mix_value(
                tree, node, value_scale=0.05, maxvisit_init=5.0
            ),
            "max_num_considered_actions": 16,
            "gumbel_scale": 1.0,
        },
        "puct": {
            "policy": mctx.muzero_policy,
            "dirichlet_fraction": 0.0,
            "pb_c_init": 2.0,
            "pb_c_base": 19652.0,
            "temperature": 1.0,
        },
    }[method]

    @jax.jit
    def both(key):
        state = start_episodes(setup.env, setup.build_system(), jax.random.split(key, 4))
        shared = az.init(key, state.timestep).shared
        # The heads start near zero: all actions and values alike.
        noise = iter(jax.random.split(key, 100))
        perturbed = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(next(noise), leaf.shape), shared.params)
        shared = shared._replace(params=perturbed)
        found = az.search(shared, state, key, SIMULATIONS)
        # The first key is for the candidates of the root, and one for the noise of its prior.
        search_key = jax.random.split(key)[1]
        search_key = jax.random.split(search_key)[1] if method == "puct" else search_key
        output = direct(az, setup.spec.model, shared, state, search_key, **options)
        return found, output.action, output.action_weights, output.search_tree.summary()

    for seed in range(3):
        found, action, weights, summary = both(jax.random.key(seed))
        assert (found.action == action).all()
        assert (found.visits == summary.visit_counts).all()
        # Sequential halving visits two actions equally often; the weights differ.
        assert method == "gumbel" or float(jnp.ptp(summary.visit_counts)) > 0
        assert float(jnp.ptp(weights)) > 0.01
        agree(f"search, {method}: action weights", found.weights, weights, 1e-5)
        agree(f"search, {method}: values", found.value, summary.value, 1e-5)
