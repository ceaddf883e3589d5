"""Record updates of PPO: of stable-baselines3 in scripted environments, and of rsl_rl with its adaptive rate.

Both run as published, in float64, on given weights. Adam's constant is 1e-3, with which the size of a gradient matters
from the first step on, and gradients are not clipped: this package clips those of actor and critic separately.

    pip install stable-baselines3 rsl-rl-lib
    python scripts/parity/record_on_policy.py
"""

import gymnasium
import numpy as np
import stable_baselines3
import torch
from record_off_policy import Flatten
from recording import round32, save
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv
from tensordict import TensorDict
from torch_recording import adam_means, as_tensor, draw_weights, weights_of

LENGTH, ENVS, OBSERVATION, ACTION, ACTIONS = 16, 4, 3, 2, 3
EPOCHS, WIDTHS, GAMMA, LAMBDA, CLIP = 3, [16, 16], 0.9, 0.8, 0.1
UNLIMITED = 1e9


def make_script(rng, truncates):
    """Draw observations, rewards and flags `[LENGTH, ENVS]`; successors are true, `following` is after a reset."""
    size = (LENGTH, ENVS)
    terminated = rng.uniform(size=size) < 0.15
    truncated = (rng.uniform(size=size) < 0.15) & ~terminated & truncates
    observation = rng.normal(size=(LENGTH + 1, ENVS, OBSERVATION))
    ends = (terminated | truncated)[..., None]
    successor = np.where(ends, rng.normal(size=(*size, OBSERVATION)), observation[1:])
    return round32(
        {
            "observation": observation[:-1],
            "following": observation[1:],
            "next_observation": successor,
            "reward": rng.normal(size=size),
            "terminated": terminated,
            "truncated": truncated,
        }
    )


class Scripted(gymnasium.Env):
    """One environment of a script; actions have no effect."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (OBSERVATION,), np.float32)

    def __init__(self, script, index, discrete):
        self.rows = {name: value[:, index] for name, value in script.items()}
        self.action_space = (
            gymnasium.spaces.Discrete(ACTIONS) if discrete else gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
        )
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        """Return the first observation of the script, or that after the last step."""
        rows = self.rows
        view = rows["following"][self.steps - 1] if self.steps else rows["observation"][0]
        return view.astype(np.float32), {}

    def step(self, action):
        """Return the next step of the script."""
        row = {name: value[self.steps] for name, value in self.rows.items()}
        self.steps += 1
        view = row["next_observation"].astype(np.float32)
        return view, float(row["reward"]), bool(row["terminated"]), bool(row["truncated"]), {}


def record_sb3(name, discrete):
    """Record one update of stable-baselines3, with terminated and truncated episodes."""
    rng = np.random.default_rng(3)
    # Of actions, and of the order of rows.
    torch.manual_seed(0)
    np.random.seed(0)
    script = make_script(rng, truncates=True)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        DummyVecEnv([lambda i=i: Scripted(script, i, discrete) for i in range(ENVS)]),
        learning_rate=1e-2,
        n_steps=LENGTH,
        batch_size=LENGTH * ENVS,
        n_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        clip_range=CLIP,
        ent_coef=0.02,
        vf_coef=0.3,
        max_grad_norm=UNLIMITED,
        device="cpu",
        policy_kwargs={
            "net_arch": {"pi": WIDTHS, "vf": WIDTHS},
            "optimizer_kwargs": {"eps": 1e-3},
            "features_extractor_class": Flatten,
        },
    )
    policy = model.policy.double()
    initial = draw_weights(policy, rng)
    model.set_logger(Logger(None, []))
    _, callback = model._setup_learn(LENGTH * ENVS)
    model.set_logger(Logger(None, []))
    model.collect_rollouts(model.env, callback, model.rollout_buffer, LENGTH)
    names = ("actions", "log_probs", "values", "advantages", "returns")
    rollout = {name: getattr(model.rollout_buffer, name).copy() for name in names}
    model.train()
    logged = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction", "explained_variance")
    save(
        name,
        {
            "script": script,
            "rollout": rollout,
            "initial": initial,
            "final": weights_of(policy),
            "mean_gradient": adam_means(policy, policy.optimizer),
            "loss": {loss: model.logger.name_to_value[f"train/{loss}"] for loss in logged},
        },
        ("stable-baselines3", "torch"),
    )


def record_rsl_rl():
    """Record one update of rsl_rl whose rate adapts to the divergence, with terminated episodes."""
    rng = np.random.default_rng(4)
    script = make_script(rng, truncates=False)
    view = TensorDict({"policy": as_tensor(script["observation"][0])}, batch_size=[ENVS])
    groups = {"actor": ["policy"], "critic": ["policy"]}
    normal = {"class_name": "GaussianDistribution", "std_type": "log"}
    actor = MLPModel(view, groups, "actor", ACTION, WIDTHS, "tanh", distribution_cfg=normal)
    critic = MLPModel(view, groups, "critic", 1, WIDTHS, "tanh")
    initial = {"actor": draw_weights(actor, rng), "critic": draw_weights(critic, rng)}
    ppo = PPO(
        actor,
        critic,
        RolloutStorage("rl", ENVS, LENGTH, view, [ACTION]),
        num_learning_epochs=10,
        num_mini_batches=1,
        clip_param=CLIP,
        gamma=GAMMA,
        lam=LAMBDA,
        value_loss_coef=0.3,
        entropy_coef=0.02,
        learning_rate=2e-3,
        max_grad_norm=UNLIMITED,
        desired_kl=0.004,
    )
    ppo.optimizer.param_groups[0]["eps"] = 1e-3
    rates, actions = [], []
    ppo.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    torch.manual_seed(0)
    for step in range(LENGTH):
        view = TensorDict({"policy": as_tensor(script["observation"][step])}, batch_size=[ENVS])
        actions.append(ppo.act(view).numpy())
        following = TensorDict({"policy": as_tensor(script["following"][step])}, batch_size=[ENVS])
        ppo.process_env_step(following, as_tensor(script["reward"][step]), as_tensor(script["terminated"][step]), {})
    ppo.compute_returns(following)
    stored = {name: getattr(ppo.storage, name).numpy().copy() for name in ("advantages", "returns", "actions_log_prob")}
    losses = ppo.update()
    means = {"actor": adam_means(actor, ppo.optimizer), "critic": adam_means(critic, ppo.optimizer)}
    save(
        "rsl_rl_ppo",
        {
            "script": script,
            "rollout": {"actions": np.stack(actions), **stored},
            "initial": initial,
            "final": {"actor": weights_of(actor), "critic": weights_of(critic)},
            "mean_gradient": means,
            "loss": losses,
            "rates": np.array(rates),
        },
        ("rsl-rl-lib", "torch"),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_sb3("sb3_ppo_normal", discrete=False)
    record_sb3("sb3_ppo_categorical", discrete=True)
    record_rsl_rl()
