"""Planning by tree search with environments on the accelerator."""
