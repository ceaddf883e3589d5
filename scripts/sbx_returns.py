"""Train agents of sbx with its defaults, in sbx's own virtual environment, and print their returns.

After every quarter of the budget, the policy's mode plays ten episodes.

    python -m venv sbx && sbx/bin/pip install sbx-rl "gymnasium[mujoco]"
    sbx/bin/python scripts/sbx_returns.py SAC HalfCheetah-v5 --seeds 3
"""

import argparse

import gymnasium
import numpy as np
import sbx
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


def main() -> None:
    """Print a line for each evaluation, and the mean over seeds of the last ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", help="SAC, TD3, CrossQ, …")
    parser.add_argument("env", help="id of gymnasium")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of each seed")
    parser.add_argument("--seeds", type=int, default=3, help="their number, from 0 on")
    args = parser.parse_args()
    finals = []
    for seed in range(args.seeds):
        agent = getattr(sbx, args.algorithm)("MlpPolicy", args.env, seed=seed)
        env = Monitor(gymnasium.make(args.env))
        env.reset(seed=1000 + seed)
        for quarter in range(1, 5):
            agent.learn(args.steps // 4, reset_num_timesteps=False)
            mean, _ = evaluate_policy(agent, env, n_eval_episodes=10, deterministic=True)
            steps = quarter * args.steps // 4
            print(f"{args.algorithm} {args.env} seed {seed}: {float(mean):.1f} after {steps:,} steps", flush=True)
        finals.append(mean)
    print(f"{args.algorithm} {args.env}: mean {np.mean(finals):.1f} of {args.seeds} seeds")


if __name__ == "__main__":
    main()
