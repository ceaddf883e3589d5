"""The benchmark: `python scripts/benchmark ppo_small`."""

from compare import main

main()
