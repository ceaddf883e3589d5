"""The algorithms: one file each, holding what its paper holds."""
