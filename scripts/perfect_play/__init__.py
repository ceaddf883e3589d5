"""Games whose perfect play is known, and how well trained policies play them."""
