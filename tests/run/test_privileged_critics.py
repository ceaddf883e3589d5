import itertools
import json
import re

import jax
import numpy as np
import pytest

from stoix_like import load_policy, train
from stoix_like.errors import ConfigError
from stoix_like.run.programs.functions import run_programs
from support import systems
from support.privileged import PRIVILEGED, STATE
from support.resumed import assert_resumed_equals_whole
from support.selections import select
from support.set_ups import loop_of, setup_of, trained

ENV = ("env._target_=support.privileged.Privileged", "arch.total_num_envs=4", "arch.num_devices=1", "logger=silent")
SMALL = (*ENV, "arch.compile_cache=false", "system.rollout_length=4", "+observations=privileged")
REPLAY = ("system.warmup_steps=16", "system.total_batch_size=8", "system.total_buffer_size=512", "system.epochs=1")
SEARCH = (*REPLAY, "system.rollout_length=8", "system.warmup_steps=32")
SEQUENCES = ("system.sequence_length=4", "system.sequence_period=4", "system.burn_in_length=2")
DISCRETE = "+env.kwargs.continuous=false"
NEEDED = {
    "ddpg/rec_td3": (*REPLAY, *SEQUENCES),
    "impala/rec_impala": ("network=rnn_actor",),
    "ppo/ff_ppo": ("system.normalize_observations=true",),
    "ppo/rec_ppo": ("network=rnn_actor", "system.normalize_observations=true", "system.sequence_length=2"),
    "reppo/ff_reppo_discrete": (DISCRETE,),
    "sac/ff_sac": (*REPLAY, "system.normalize_observations=true"),
    "sac/rec_sac": (*REPLAY, *SEQUENCES),
    "sac/ff_sac_discrete": (*REPLAY, DISCRETE),
    "search/ff_az": (*SEARCH, DISCRETE),
    **dict.fromkeys(("search/ff_sampled_az", "spo/ff_spo"), SEARCH),
}
# Every actor-critic without a learned model.
ACTOR_CRITICS = ({"actor_network", "critic_network"}, {"actor_network", "q_network"})
SYSTEMS = {
    system: NEEDED.get(system, REPLAY if systems.has_replay(system) else ())
    for system in systems.SYSTEMS
    if systems.networks(system) in ACTOR_CRITICS
}


def prepare(system, *overrides):
    return setup_of(f"system={system}", *SMALL, *overrides)


def first_kernels(shared, network):
    flat = jax.tree_util.tree_flatten_with_path(shared)[0]
    named = {name: leaf.shape for path, leaf in flat if network in (name := jax.tree_util.keystr(path))}
    return {
        shape[0]
        for name, shape in named.items()
        if re.search(r"torso'\]\['(Unit)?Dense_0'\]\['(unit_)?kernel'\]$", name)
        and "post" not in name
        and ".head" not in name
    }


@pytest.mark.parametrize("system", select(SYSTEMS, quick=("sac/ff_sac",)))
def test_actor_and_critic_observe_entries_of_their_own(system):
    """Tracing a whole update also shows that no network gets the entry of the other one: they differ in size."""
    init, training = itertools.islice(run_programs(prepare(system, *SYSTEMS[system])), 2)
    jax.eval_shape(training.function, *training.args)
    shared = jax.eval_shape(init.function, *init.args).shared
    # A flow observes its action and the time of it, too.
    assert first_kernels(shared, "actor_params") == {STATE + 2 * (system == "sac/ff_flow")}
    # The action joins the observation, but for the critics of discrete actions and those behind cells.
    extra = {
        "critic": int(system == "q_learning/ff_pqn_continuous"),
        "q": 0 if system.endswith("discrete") or "/rec_" in system else 1,
    }
    sizes = {kind: first_kernels(shared, f"{kind}_params") for kind in extra}
    assert [sizes[kind] for kind in extra if sizes[kind]] == [
        {PRIVILEGED + extra[kind]} for kind in extra if sizes[kind]
    ]
    assert any(sizes.values())


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "ppo/rec_ppo", "sac/ff_sac"])
def test_exported_policies_hold_and_take_what_the_actor_observes(tmp_path, system):
    sizes = ["arch.total_timesteps=160", "arch.num_evaluation=1", "arch.num_eval_episodes=2"]
    run_dir = train(system, [*SMALL, *SYSTEMS[system], *sizes], run_dir=tmp_path / "run").run_dir
    policy = load_policy(run_dir, "last", greedy=True)
    assert policy.inputs == ("agent_view.state",)
    state = np.asarray(jax.random.normal(jax.random.key(0), (6, STATE)))
    view = {"state": state}
    # What the actor does not observe may be there, and may be missing.
    recurrent = system == "ppo/rec_ppo"
    given = (policy.initial_state(6),) if recurrent else ()
    action = policy(view, *given)
    whole = policy({**view, "privileged_state": np.ones((6, PRIVILEGED), np.float32)}, *given)
    jax.tree.map(np.testing.assert_array_equal, action, whole)
    with pytest.raises(ValueError, match=r"no agent_view\.privileged_state: pass a dictionary"):
        policy.inspect(view)
    for format in ("stablehlo", "onnx", *(() if recurrent else ("npz",))):
        path = policy.export(tmp_path / f"policy.{format}")
        described = json.loads(path.with_name(f"{path.name}.json").read_text())
        names = [entry["name"] for entry in described["inputs"]]
        assert names[0] == "agent_view.state"
        assert not any("privileged" in name for name in names)
        # Weights and statistics of nothing else: they are constants of this size.
        assert path.stat().st_size < 3_000_000
    if not recurrent:
        from stoix_like.policies.formats import numpy_policy

        np.testing.assert_allclose(numpy_policy.load(tmp_path / "policy.npz")(state), action, rtol=1e-4, atol=1e-5)
        with np.load(tmp_path / "policy.npz") as arrays:
            assert arrays["kernel_0"].shape[0] == STATE
            assert arrays["mean"].shape == (STATE,)


@pytest.mark.slow
@pytest.mark.optimized
def test_a_resumed_run_with_a_feed_forward_critic_is_bit_identical(tmp_path):
    overrides = (*SYSTEMS["ppo/rec_ppo"], "arch.total_timesteps=256", "arch.num_evaluation=4")
    run = ("system=ppo/rec_ppo", *SMALL, *overrides)
    assert_resumed_equals_whole(lambda writer: loop_of(*run, writer=writer), tmp_path)


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("system", ["ppo/rec_ppo", "impala/rec_impala"])
def test_a_recurrent_actor_learns_with_a_feed_forward_critic(system):
    """The policy reads the sign of a noisy number; one that does not earns 4 of 8."""
    overrides = [*SYSTEMS[system], "arch.total_num_envs=64", "system.rollout_length=16", "arch.total_timesteps=6e4"]
    rates = ["system.actor_lr=3e-3", "system.critic_lr=3e-3", "system.normalize_observations=false"]
    loop = trained(f"system={system}", *SMALL, *overrides, *rates)
    assert loop.history[-1]["eval/episode_return_mean"] > 6.5


@pytest.mark.parametrize("system", ["search/ff_sampled_mz", "dreamer/dreamer_v3"])
def test_learned_models_refuse_a_selection_that_only_their_heads_would_make(system):
    """The model observes all entries, those of a privileged critic, too, and so would the policy."""
    message = rf"actor_network\.input_layer=FeatureInput, which network\.observations .* system={system} learns a model"
    with pytest.raises(ConfigError, match=message):
        prepare(system, "system.warmup_steps=128")


def test_entries_need_no_prefix_and_an_input_layer_of_its_own_wins():
    short = "network.observations={actor: state, critic: privileged_state}"
    networks = prepare("ppo/ff_ppo", short).spec.networks
    assert networks.actor_network.input_layer.feature_name == "agent_view.state"
    assert networks.critic_network.input_layer.feature_name == "agent_view.privileged_state"
    layer = "{_target_: stoix_like.networks.inputs.FeatureInput,feature_name: agent_view}"
    networks = prepare("ppo/ff_ppo", f"+network.critic_network.input_layer={layer}").spec.networks
    assert networks.actor_network.input_layer.feature_name == "agent_view.state"
    assert networks.critic_network.input_layer.view_dims == (1, 1)
