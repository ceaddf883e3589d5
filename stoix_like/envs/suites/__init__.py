"""One adapter module per suite of environments, each with `scenarios` and `make`; `envs.factory` lists them."""
