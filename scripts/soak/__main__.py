"""The soak test: `python scripts/soak --minutes 10`."""

from soak import main

main()
