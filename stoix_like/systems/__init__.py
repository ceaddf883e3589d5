"""Reinforcement learning algorithms, one file each, in `<family>/anakin/`.

A system's file shows its hyperparameters, how it acts, its targets, losses and update; a variant replaces the method
that differs. What families share stands in `on_policy` and `off_policy`: the networks and the state of actor-critics,
their recurrent forms, and epochs of minibatches or of replay. Options are `parts`, one a file and each the identity
where it is off. `algorithm` turns an algorithm into a `System` and makes its entry points.
"""
