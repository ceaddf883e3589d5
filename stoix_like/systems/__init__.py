"""Reinforcement learning algorithms, one file each, in `<family>/anakin/`.

A system's file shows its hyperparameters, how it acts, its targets, losses and update; a variant replaces the method
that differs. What families share: the networks and the state of actor-critics (`actor_critic`,
`recurrent_actor_critic`, `off_policy_actor_critic`), epochs of minibatches (`on_policy`) and of replay (`off_policy`),
and the gradient step (`gradient_descent`). Options are parts, each the identity where it is off: `utils.normalizer`,
`utils.exploration`, `utils.advantages`, `utils.kl_stop`. `launch` turns an algorithm into a `System` and
makes its entry points.
"""
