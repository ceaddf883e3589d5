"""Planning by tree search: AlphaZero, MuZero and their sampled forms."""
