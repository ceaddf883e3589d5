import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Agent, Axes, Observation, Trajectory, Transition
from stoix_like.envs.environment import restart
from stoix_like.networks.rssm import Latent
from stoix_like.schema import replace_values
from stoix_like.systems.dreamer.anakin.dreamer_v3 import make_algorithm
from stoix_like.systems.dreamer.dreamer_types import DreamerParams, DreamerShared
from stoix_like.systems.dreamer.world_model import StoredLatent
from stoix_like.utils.replay import Stream, StreamBatch
from support.recurrent_references import sigmoid
from support.set_ups import setup_of
from support.tiny_dreamer import TINY

pytestmark = pytest.mark.slow
KEY = jax.random.key(3)
# Two sequences of eight entries. The first has an episode that is truncated at entry 2 and the start of the next one at
# entry 3; the second continues an episode that terminates at entry 4.
IS_FIRST = np.array([[1, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]], bool).T
IS_LAST = np.array([[0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]], bool).T
TERMINATED = np.array([[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]], bool).T
REWARD = np.where(IS_FIRST, 0.0, np.arange(16.0).reshape(8, 2) - 5.0).astype(np.float32)


def _batch():
    keys = jax.random.split(KEY, 3)
    view = 3.0 * jax.random.normal(keys[0], (8, 2, 4))
    action = jnp.where(IS_FIRST, 0, jax.random.bernoulli(keys[1], 0.5, (8, 2)).astype(jnp.int32))
    entries = Stream(Observation(view), action, *map(jnp.asarray, (REWARD, IS_FIRST, IS_LAST, TERMINATED)))
    latent = StoredLatent(jax.random.normal(keys[2], (2, 32)), jnp.ones((2, 4), jnp.uint16))
    return StreamBatch(entries, latent, indices=())


@pytest.fixture(scope="module")
def setup():
    setup = setup_of(*TINY, "env=gymnax/cartpole")
    return setup.config.system, setup.spec._replace(axes=Axes())


@pytest.fixture(scope="module")
def params(setup):
    """Random parameters, of the heads that start at zero, too."""
    dreamer = make_algorithm(*setup)

    def init(key):
        features = dreamer.model.initial((1,)).features
        parts = (
            dreamer.model.init(key, Observation(jnp.ones((2, 4)))),
            dreamer.actor.init(key, features),
            dreamer.critic.init(key, features),
        )
        leaves, structure = jax.tree.flatten(parts)
        noise = jax.random.split(key, len(leaves))
        leaves = [x + 0.1 * jax.random.normal(k, x.shape) for k, x in zip(noise, leaves, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    model, actor, critic = jax.jit(init)(KEY)
    return DreamerParams(model, actor, critic), jax.tree.map(lambda x: 0.5 * x, critic)


def _softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _mean(logits, atoms):
    return (_softmax(logits) * atoms).sum(-1)


def _cross_entropy(logits, atoms, target):
    """Return the cross-entropies of the two atoms around each target, found one by one."""
    log_probs, losses = np.log(_softmax(logits)), np.zeros(target.shape)
    for index in np.ndindex(target.shape):
        y = np.clip(target[index], atoms[0], atoms[-1])
        above = min(max(int(np.searchsorted(atoms, y)), 1), len(atoms) - 1)
        share = (y - atoms[above - 1]) / (atoms[above] - atoms[above - 1])
        losses[index] = -(1 - share) * log_probs[index][above - 1] - share * log_probs[index][above]
    return losses


def _kl(p_logits, q_logits):
    p, q = _softmax(p_logits), _softmax(q_logits)
    return (p * (np.log(p) - np.log(q))).sum((-2, -1))


def test_every_loss_equals_that_of_numpy(setup, params):
    config, _ = setup
    dreamer, batch, (params, slow) = make_algorithm(*setup), _batch(), params
    entries, model, horizon = batch.entries, dreamer.model, config.imagination_length

    @jax.jit
    def run(params, slow):
        loss, (metrics, _, percentiles) = dreamer.loss(params, slow, dreamer.returns.init(), batch, KEY)
        model_key, imagine_key, _ = jax.random.split(KEY, 3)
        seen = model.observe(params.model_params, model.restored(batch.latent), entries, model_key)
        start = jax.tree.map(lambda x: x.reshape(16, *x.shape[2:]), seen.latent)

        def act(latent, mask, key):
            return dreamer.sample_action(params.actor_params, latent, mask, key)

        dream = model.imagine(params.model_params, start, None, act, imagine_key, horizon)

        def heads(latent: Latent):
            return {
                "reward": model.reward(params.model_params, latent).logits,
                "continues": model.continue_network.apply(params.model_params["continues"], latent.features),
                "policy": dreamer.policy(params.actor_params, latent, None).logits,
                "value": dreamer.critic.apply(params.critic_params, latent.features).logits,
                "slow": dreamer.critic.apply(slow, latent.features).logits,
            }

        views = model._apply("decoder", params.model_params, seen.latent.features)["agent_view"]
        replayed = heads(seen.latent) | {"view": views, "posterior": seen.posterior, "prior": seen.prior}
        atoms = dreamer.critic.apply(params.critic_params, seen.latent.features).values[0, 0]
        return loss, metrics, percentiles, replayed, heads(dream.latent), dream.action, atoms

    loss, metrics, percentiles, *found = jax.device_get(run(params, slow))
    replayed, imagined, action, atoms = jax.tree.map(lambda x: np.asarray(x, np.float64), found)
    action = action.astype(int)

    view = np.asarray(entries.observation.agent_view, np.float64)
    expected = {
        "reconstruction": (replayed["view"] - np.sign(view) * np.log1p(np.abs(view))) ** 2 @ np.ones(4),
        "reward": _cross_entropy(replayed["reward"], atoms, REWARD),
        "continue": -np.log(sigmoid(np.where(TERMINATED, -1, 1) * replayed["continues"])),
        "dynamics": np.maximum(config.model.free_nats, _kl(replayed["posterior"], replayed["prior"])),
    }
    expected["representation"] = expected["dynamics"]
    expected = {name: x.mean() for name, x in expected.items()}
    total = sum(getattr(config.model, f"{name}_coef") * value for name, value in expected.items())

    # Index h of the dream is h steps after the start.
    value, reward = (_mean(imagined[name], atoms) for name in ("value", "reward"))
    going, gamma, mix = sigmoid(imagined["continues"]), config.gamma, config.gae_lambda
    returns, weight = value.copy(), np.ones_like(value)
    weight[0] = 1.0 - TERMINATED.reshape(-1)
    for h in reversed(range(horizon)):
        following = (1 - mix) * value[h + 1] + mix * returns[h + 1]
        returns[h] = reward[h + 1] + gamma * going[h + 1] * following
    for h in range(1, horizon):
        weight[h] = weight[h - 1] * gamma * going[h]
    returns, weight, value = returns[:-1], weight[:-1], value[:-1]
    low, high = 0.01 * np.percentile(returns, [5, 95])
    np.testing.assert_allclose(percentiles, [low, high], rtol=1e-3)
    probs = _softmax(imagined["policy"][:-1])
    chosen = np.take_along_axis(probs, action[..., None], -1)[..., 0]
    entropy = -(probs * np.log(probs)).sum(-1)
    advantage = (returns - value) / max(1.0, high - low)
    expected["policy"] = (weight * (-np.log(chosen) * advantage - config.ent_coef * entropy)).mean()
    slow_value = _mean(imagined["slow"][:-1], atoms)
    losses = [_cross_entropy(imagined["value"][:-1], atoms, target) for target in (returns, slow_value)]
    expected["value"] = (weight * (losses[0] + config.slow_critic_coef * losses[1])).mean()

    # An episode that is truncated ends with the return imagined from there, and so does the sequence.
    values = returns[0].reshape(8, 2)
    replay_loss, slow_value = 0.0, _mean(replayed["slow"], atoms)
    following = values[-1]
    for t in reversed(range(7)):
        rest = np.where(IS_LAST[t + 1], values[t + 1], (1 - mix) * values[t + 1] + mix * following)
        following = REWARD[t + 1] + gamma * np.where(TERMINATED[t + 1], 0.0, rest)
        losses = [_cross_entropy(replayed["value"][t], atoms, y) for y in (following, slow_value[t])]
        replay_loss += np.where(IS_LAST[t], 0.0, losses[0] + config.slow_critic_coef * losses[1]).sum() / 14
    expected["replay_value"] = replay_loss

    for name, value in expected.items():
        np.testing.assert_allclose(metrics[f"{name}_loss"], value, rtol=2e-3, err_msg=name)
    total += expected["policy"] + config.vf_coef * expected["value"] + config.replay_vf_coef * replay_loss
    np.testing.assert_allclose(loss, total, rtol=1e-3)


COEFS = ("reconstruction", "reward", "continue", "dynamics", "representation")


def test_each_loss_trains_its_own_parameters(setup, params):
    config, spec = setup
    (params, slow), batch = params, _batch()

    @jax.jit
    def norms(coefs):
        dreamer = make_algorithm(replace_values(config, coefs), spec)
        loss = jax.grad(lambda params: dreamer.loss(params, slow, dreamer.returns.init(), batch, KEY)[0])
        return jax.tree.map(jnp.linalg.norm, loss(params))

    def trained(**coefs):
        off = {f"{name}_coef": 0.0 for name in (*COEFS, "vf", "replay_vf")}
        found = norms(off | {f"{name}_coef": value for name, value in coefs.items()})
        return {
            name.removesuffix("_params")
            for name, part in found._asdict().items()
            if any(leaf > 0 for leaf in jax.tree.leaves(part))
        }, found

    alone, policy = trained()
    # Imagination is not differentiated: the policy loss trains the policy and nothing else.
    assert alone == {"actor"}
    assert trained(vf=1.0)[0] == {"actor", "critic"}
    # The values of replayed states train their latents, too.
    assert trained(replay_vf=1.0)[0] == {"actor", "critic", "model"}
    for name in COEFS:
        which, found = trained(**{name: 1.0})
        assert which == {"actor", "model"}, name
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found.actor_params, policy.actor_params)


def test_a_gradient_step_moves_the_slow_critic_and_stores_the_new_latents(setup, params):
    """The sequences that start in the middle of the batch's find the latents after the entries before them."""
    config, spec = setup
    dreamer, (params, slow) = make_algorithm(*setup), params
    key, shape = jax.random.key(5), (12, spec.num_envs)
    view, flag = jax.random.normal(key, (*shape, 4)), jnp.zeros(shape, bool)
    first = Observation(view[0])
    local = dreamer.replay.init(restart(first)._replace(observation=first))
    extras = StoredLatent(jnp.zeros((*shape, 32)), jnp.zeros((*shape, 4), jnp.uint16))
    steps = Transition(Observation(view), flag.astype(int), view[..., 0], flag, flag, Observation(view), flag, extras)
    local = dreamer.replay.add(local, Trajectory(steps, ()))
    shared = DreamerShared(params, slow, dreamer.optim.init(params), jnp.array([1.0, 2.0]))

    @jax.jit
    def run(agent):
        after, _ = dreamer.sgd_step(agent, key, KEY)
        batch = dreamer.replay.sample(agent.local, key)
        _, (_, latent, percentiles) = dreamer.loss(params, slow, agent.shared.return_scale, batch, KEY)
        return after, batch.indices, dreamer.model.stored(latent), percentiles

    after, (rows, starts), latent, percentiles = run(Agent(shared, local))
    moved = jax.tree.map(lambda x, y: x + config.tau * (y - x), slow, after.shared.params.critic_params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), after.shared.slow_critic, moved)
    np.testing.assert_allclose(after.shared.return_scale, percentiles, rtol=1e-5)
    # Starts at every fourth of 64 entries of a row: the next one finds the latent after four entries, unless another
    # sequence of the batch, with a longer context, or the same one has stored its own there.
    stored = jax.tree.map(lambda x: x[(64 * rows + starts + 4) // 4], after.local.latents)
    pairs = list(zip(rows.tolist(), starts.tolist(), strict=True))
    kept = [
        i
        for i, (row, start) in enumerate(pairs)
        if not {(row, start), (row, start - 4)} & {*pairs[:i], *pairs[i + 1 :]}
    ]
    assert kept
    for found, expected in zip(stored, (latent.deterministic[3], latent.classes[3]), strict=True):
        np.testing.assert_allclose(found[np.array(kept)], expected[np.array(kept)], atol=1e-5)
    assert float(jnp.abs(stored.deterministic).max()) > 0.0
