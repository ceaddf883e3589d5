"""Train DQN or QR-DQN of Stable-Baselines3 with the settings of its zoo, in its own virtual environment.

    python -m venv sb3 && sb3/bin/pip install sb3-contrib
    sb3/bin/python scripts/sb3_returns.py DQN MountainCar-v0 --seeds 5

The settings are those of `hyperparams/dqn.yml` and `qrdqn.yml` in the RL Baselines3 Zoo, whose two algorithms
differ in the quantiles alone. After its last step each agent plays 32 greedy episodes.
"""

import argparse

import gymnasium
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

# Environment steps, quantiles of QR-DQN, and what both algorithms share.
SETTINGS = {
    "CartPole-v1": (
        50_000,
        10,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
        },
    ),
    "MountainCar-v0": (
        120_000,
        25,
        {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
        },
    ),
    "Acrobot-v1": (
        100_000,
        25,
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
        },
    ),
}


def main() -> None:
    """Print the mean return of each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=["DQN", "QRDQN"])
    parser.add_argument("env", choices=sorted(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5, help="their number")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    steps, quantiles, settings = SETTINGS[args.env]
    kind, networks = DQN, {"net_arch": [256, 256]}
    if args.algorithm == "QRDQN":
        kind, networks = QRDQN, networks | {"n_quantiles": quantiles}
    for seed in range(args.first, args.first + args.seeds):
        agent = kind("MlpPolicy", args.env, seed=seed, device="cpu", policy_kwargs=networks, **settings)
        agent.learn(steps)
        env = Monitor(gymnasium.make(args.env))
        env.reset(seed=1000 + seed)
        mean, _ = evaluate_policy(agent, env, n_eval_episodes=32, deterministic=True)
        print(f"{args.algorithm} {args.env} seed {seed}: {float(mean):.1f} after {steps:,} steps", flush=True)


if __name__ == "__main__":
    main()
