"""Systems for recorded data, with environments on the accelerator or none."""
