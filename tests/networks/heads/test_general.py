import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Discrete, Mixed, MultiDiscrete, Tuple
from stoix_like.networks import heads
from support.every_head import KEY


class TestDefaultPolicyHead:
    @pytest.mark.parametrize(
        ("space", "kind"),
        [
            (Discrete(3), heads.CategoricalHead),
            (MultiDiscrete((2, 3)), heads.MultiDiscreteHead),
            (Box(-1.0, np.asarray([1.0, 2.0]), (2,)), heads.NormalAffineTanhDistributionHead),
            (Box(-np.inf, np.inf, (2,)), heads.MultivariateNormalDiagHead),
            (Box(0.0, np.inf, (2,)), heads.MultivariateNormalDiagHead),
            (Box(-np.inf, np.inf, ()), heads.MultivariateNormalDiagHead),
            (Box(-np.inf, np.inf, (3, 2)), heads.MultivariateNormalDiagHead),
        ],
    )
    def test_head_supports_the_action_space(self, space, kind):
        head = heads.policy_head(space)
        assert type(head) is kind

        def act(x):
            pi = jax.jit(head.init_with_output)(KEY, x)[0]
            sample = pi.sample(seed=KEY)
            return sample, pi.log_prob(sample)

        sample, log_prob = jax.eval_shape(act, jnp.ones((5, 4)))
        assert sample.shape == (5, *space.shape)
        assert log_prob.shape == (5,)

    def test_dreamers_heads_keep_all_choices_possible_and_means_within_bounds(self):
        head = heads.dreamer_policy_head
        assert (head(Discrete(3)).uniform_mix, head(MultiDiscrete((2, 3)), 0.1).uniform_mix) == (0.01, 0.1)
        assert type(head(Box(-1.0, 1.0, (2,)))) is heads.BoundedNormalHead
        assert type(head(Box(-1.0, np.inf, (2,)))) is heads.MultivariateNormalDiagHead
        mixed = head(Mixed(Tuple([Discrete(3), Box(-1.0, 1.0, (2,))])), 0.3)
        pi = jax.eval_shape(lambda x: mixed.init_with_output(KEY, x)[0].sample(seed=KEY), jnp.ones((5, 4)))
        assert pi.shape == (5, 3)
        assert mixed.part_head(Discrete(3)).uniform_mix == 0.3
