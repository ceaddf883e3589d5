import jax.numpy as jnp
import optax
import pytest

from stoix_like.errors import ConfigError
from stoix_like.run.set_up.variables import check_variables
from support.set_ups import config_of, setup_of

TORSO = "network.actor_network.pre_torso={_target_: support.torsos.FixedFeatures}"


def config(system):
    return config_of(f"system={system}")


def shared(collection, optim):
    variables = {"params": {"w": jnp.ones(3)}, collection: {"torso": {"b": jnp.ones(2)}}}
    return {"actor": variables, "optimiser": optim.init({"actor": variables})}


def test_constants_of_a_torso_are_not_trained_but_refused():
    message = "system=ppo/ff_ppo would train the collection constants of the network params.actor_params .* as arrays"
    with pytest.raises(ConfigError, match=message):
        setup_of("env=probe/policy", TORSO)


def test_batch_statistics_are_refused_where_the_system_does_not_update_them():
    state = shared("batch_stats", optax.adam(1e-3))
    check_variables(state, config("sac/ff_crossq"))
    with pytest.raises(ConfigError, match="system=sac/ff_sac would train the collection batch_stats .* layer norm"):
        check_variables(state, config("sac/ff_sac"))


def test_collections_that_no_optimiser_changes_are_accepted():
    alone = optax.masked(optax.adam(1e-3), {"actor": {"params": True, "constants": False}})
    for optim in (alone, optax.set_to_zero()):
        check_variables(shared("constants", optim), config("ppo/ff_ppo"))
    # No collection of variables: a temperature that is optimised with a network.
    params = {"params": {"w": jnp.ones(3)}, "temperature": jnp.ones(())}
    check_variables({"params": params, "optimiser": optax.adam(1e-3).init(params)}, config("ppo/ff_ppo"))
