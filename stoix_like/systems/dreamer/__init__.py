"""Systems that learn a model of the environment and act in its imagination."""
