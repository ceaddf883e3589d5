"""Record gradient steps of stable-baselines3 and sb3-contrib: SAC, TD3, TQC, DQN and QR-DQN.

Their algorithms run as published, in float64, on given weights, batches and noise. Three attributes are set, each a
difference on purpose (see `docs/parity.md`): the standard deviation of policies is softplus(s) + 1e-3 as in this
package, the constant inside the logarithm of squashed densities is 0, and that of Adam is 1e-3, with which the size of
a gradient matters from the first step on.

    pip install stable-baselines3 sb3-contrib
    python scripts/parity/record_off_policy.py
"""

from types import SimpleNamespace

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from recording import ACTION, ACTIONS, BATCH, OBSERVATION, STEPS, make_batches, save
from stable_baselines3.common.buffers import ReplayBufferSamples
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import polyak_update
from torch_recording import adam_means, as_tensor, draw_weights, noise, weights_of

PACKAGES = ("stable-baselines3", "sb3-contrib", "torch")
WIDTHS = [16, 16]
LEARNING_RATE, ADAM_EPS, GAMMA, TAU = 1e-2, 1e-3, 0.9, 0.5


class Spaces(gymnasium.Env):
    """An environment of which only the spaces are used."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (OBSERVATION,), np.float64)

    def __init__(self, discrete=False):
        self.action_space = (
            gymnasium.spaces.Discrete(ACTIONS) if discrete else gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float64)
        )


class Flatten(FlattenExtractor):
    """Observations in float64; the networks of stable-baselines3 take float32."""

    def forward(self, observations):
        return super().forward(observations).double()


class LogSoftplus(torch.nn.Linear):
    """The logarithm of softplus(s) + 1e-3, for a linear s."""

    def forward(self, x):
        return torch.log(torch.nn.functional.softplus(super().forward(x)) + 1e-3)


def samples(batches, step):
    """Return a batch as the replay buffer of stable-baselines3 does."""
    rows = {name: as_tensor(value[step]) for name, value in batches.items()}
    action = rows["action"] if rows["action"].ndim > 1 else rows["action"][:, None]
    return ReplayBufferSamples(
        observations=rows["observation"],
        actions=action,
        next_observations=rows["next_observation"],
        dones=rows["terminated"].double()[:, None],
        rewards=rows["reward"][:, None],
    )


def record(
    name, algorithm, logged, discrete=False, draws=(), steps=STEPS, loss_scale=1.0, policy_kwargs=None, **settings
):
    """Record the steps of one algorithm.

    Args:
        name: of the file.
        algorithm: a class of stable-baselines3.
        logged: names of the losses in its log.
        discrete: whether actions are discrete.
        draws: names of the noise that a step draws, in this order.
        steps: number of gradient steps.
        loss_scale: the loss of the critics in units of ours; Adam's constant has these units, too.
        policy_kwargs: further arguments of the networks.
        settings: further arguments of the algorithm.
    """
    rng = np.random.default_rng(0)
    optimizer = {"eps": ADAM_EPS}
    model = algorithm(
        "MlpPolicy",
        Spaces(discrete),
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        tau=TAU,
        policy_kwargs={
            "net_arch": WIDTHS,
            "optimizer_kwargs": optimizer,
            "features_extractor_class": Flatten,
            **(policy_kwargs or {}),
        },
        device="cpu",
        buffer_size=1,
        **settings,
    )
    model.set_logger(Logger(None, []))
    if getattr(model, "ent_coef_optimizer", None) is not None:
        model.log_ent_coef.data = model.log_ent_coef.data.double()
        model.ent_coef_optimizer = torch.optim.Adam([model.log_ent_coef], lr=LEARNING_RATE, eps=ADAM_EPS)
    networks = networks_of(model)
    next(reversed(networks.values())).optimizer.param_groups[0]["eps"] = loss_scale * ADAM_EPS
    for network in networks.values():
        network.online.double()
    initial = {name: draw_weights(network.online, rng) for name, network in networks.items()}
    for network in networks.values():
        if network.target is not None:
            network.target.double().load_state_dict(network.online.state_dict())
    batches = make_batches(rng, discrete)
    losses = {loss: [] for loss in logged}
    for step in range(steps):
        model.replay_buffer = SimpleNamespace(sample=lambda *_, step=step, **__: samples(batches, step))
        with noise([batches[draw][step] for draw in draws]):
            model.train(gradient_steps=1, batch_size=BATCH)
        if discrete:
            # A step of the target parameters is one of the rollout there.
            polyak_update(networks["q"].online.parameters(), networks["q"].target.parameters(), TAU)
        for loss in logged:
            losses[loss].append(model.logger.name_to_value[f"train/{loss}"])
    tree = {
        "batch": batches,
        "initial": initial,
        "final": {name: weights_of(network.online) for name, network in networks.items()},
        "target": {name: weights_of(net.target) for name, net in networks.items() if net.target is not None},
        "mean_gradient": {name: adam_means(net.online, net.optimizer) for name, net in networks.items()},
        "loss": losses,
    }
    if getattr(model, "ent_coef_optimizer", None) is not None:
        tree["final"]["log_ent_coef"] = model.log_ent_coef.detach().numpy()
        moments = model.ent_coef_optimizer.state[model.log_ent_coef]
        tree["mean_gradient"]["log_ent_coef"] = moments["exp_avg"].numpy()
    save(name, tree, PACKAGES)


def networks_of(model):
    """Return the networks of an algorithm, with their targets and optimisers."""
    policy = model.policy
    if hasattr(policy, "q_net"):
        return {"q": SimpleNamespace(online=policy.q_net, target=policy.q_net_target, optimizer=policy.optimizer)}
    if hasattr(policy, "quantile_net"):
        online, target = policy.quantile_net, policy.quantile_net_target
        return {"q": SimpleNamespace(online=online, target=target, optimizer=policy.optimizer)}
    actor, critic = policy.actor, policy.critic
    if hasattr(actor, "log_std"):
        features = actor.log_std.in_features
        actor.log_std = LogSoftplus(features, ACTION)
        actor.optimizer = type(actor.optimizer)(actor.parameters(), **actor.optimizer.defaults)
        actor.action_dist.epsilon = 0.0
    return {
        "actor": SimpleNamespace(online=actor, target=getattr(policy, "actor_target", None), optimizer=actor.optimizer),
        "critic": SimpleNamespace(
            online=critic, target=getattr(policy, "critic_target", None), optimizer=critic.optimizer
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    SOFT = {"logged": ("actor_loss", "critic_loss"), "draws": ("noise", "next_noise")}
    record("sb3_sac", stable_baselines3.SAC, **SOFT, ent_coef=0.2)
    learned = SOFT | {"logged": ("actor_loss", "critic_loss", "ent_coef_loss")}
    record("sb3_sac_temperature", stable_baselines3.SAC, **learned, ent_coef="auto_1.0", steps=1)
    record("sb3_td3", stable_baselines3.TD3, ("critic_loss",), draws=("next_noise",), policy_delay=2, loss_scale=2.0)
    record(
        "sb3_tqc",
        sb3_contrib.TQC,
        **SOFT,
        ent_coef=0.2,
        loss_scale=0.5,
        top_quantiles_to_drop_per_net=2,
        policy_kwargs={"n_quantiles": 7, "n_critics": 2},
    )
    record("sb3_dqn", stable_baselines3.DQN, ("loss",), discrete=True, max_grad_norm=0.5)
    record(
        "sb3_qr_dqn",
        sb3_contrib.QRDQN,
        ("loss",),
        discrete=True,
        max_grad_norm=0.5,
        policy_kwargs={"n_quantiles": 7},
    )
