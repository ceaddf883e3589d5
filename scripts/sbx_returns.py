"""Train agents of sbx with its defaults, in sbx's own virtual environment, and print their returns.

After every quarter of the budget, the policy's mode plays ten episodes.

    python -m venv sbx && sbx/bin/pip install sbx-rl "gymnasium[mujoco]"
    sbx/bin/python scripts/sbx_returns.py SAC HalfCheetah-v5 --seeds 3
    sbx/bin/python scripts/sbx_returns.py CrossQ HalfCheetah-v5 --seeds 3 --critic-width 256
    sbx/bin/python scripts/sbx_returns.py SAC Ant-v5 --seeds 3 \\
        --env-kwargs '{"include_cfrc_ext_in_observation": false, "contact_cost_weight": 0}'
"""

import argparse
import json
from functools import partial

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
    parser.add_argument("--seeds", type=int, default=3, help="their number")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--critic-width", type=int, help="units of both layers of the critics; by default sbx's")
    parser.add_argument("--env-kwargs", type=json.loads, default={}, help="arguments of gymnasium.make, as JSON")
    args = parser.parse_args()
    networks = None
    if args.critic_width is not None:
        networks = {"net_arch": {"pi": [256, 256], "qf": [args.critic_width] * 2}}
    make = partial(gymnasium.make, args.env, **args.env_kwargs)
    finals = []
    for seed in range(args.first, args.first + args.seeds):
        agent = getattr(sbx, args.algorithm)("MlpPolicy", make(), seed=seed, policy_kwargs=networks)
        env = Monitor(make())
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
