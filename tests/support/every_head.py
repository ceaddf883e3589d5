"""Each head, with the shapes of its outputs for one embedding."""

import jax

from stoix_like.envs.spaces import Box, Discrete, Mixed, Tuple
from stoix_like.networks import heads

KEY = jax.random.key(0)
BOUNDS = {"minimum": (-1.0, 0.0), "maximum": (1.0, 3.0)}
ATOMS = {"num_atoms": 5, "vmin": -1.0, "vmax": 1.0}
Q = {"action_dim": 3, "epsilon": 0.1}
# Each head with the shapes of its outputs for one embedding: of a sample of a distribution, or of an array.
HEADS = {
    "categorical": (heads.CategoricalHead(3), [()]),
    "categorical_grid": (heads.CategoricalHead((2, 3)), [(2,)]),
    "multi_discrete": (heads.MultiDiscreteHead(2, (2, 3)), [(2,)]),
    "mixed": (heads.MixedHead(Mixed(Tuple([Discrete(3), Box(-1.0, 1.0, (2,))]))), [(3,)]),
    "tanh_normal": (heads.NormalAffineTanhDistributionHead(2, **BOUNDS), [(2,)]),
    "tanh_normal_grid": (heads.NormalAffineTanhDistributionHead((3, 2), -1.0, 1.0), [(3, 2)]),
    "bounded_normal": (heads.BoundedNormalHead(2, **BOUNDS), [(2,)]),
    "categorical_mixed": (heads.CategoricalHead(3, uniform_mix=0.1), [()]),
    "multi_discrete_mixed": (heads.MultiDiscreteHead(2, (2, 3), uniform_mix=0.1), [(2,)]),
    "beta": (heads.BetaDistributionHead(2, **BOUNDS), [(2,)]),
    "hyperspherical": (heads.HypersphericalPolicyHead(2, **BOUNDS), [(2,)]),
    "normal": (heads.MultivariateNormalDiagHead(2), [(2,)]),
    "normal_scalar": (heads.MultivariateNormalDiagHead(()), [()]),
    "normal_grid": (heads.MultivariateNormalDiagHead((3, 2)), [(3, 2)]),
    "gsde": (heads.StateDependentNoiseHead(2), [(2,)]),
    "gsde_scalar": (heads.StateDependentNoiseHead(()), [()]),
    "gsde_grid": (heads.StateDependentNoiseHead((3, 2)), [(3, 2)]),
    "deterministic": (heads.DeterministicHead(2, **BOUNDS), [(2,)]),
    "scalar": (heads.ScalarCriticHead(), [()]),
    "categorical_critic": (heads.CategoricalCriticHead(5), [()]),
    "symexp_critic": (heads.SymexpCriticHead(5), [()]),
    "discrete_valued": (heads.DiscreteValuedTfpHead(-1.0, 1.0, 5, (2,)), [(2,)]),
    "quantile_critic": (heads.QuantileCriticHead(7), [(7,), (7,)]),
    "q": (heads.DiscreteQNetworkHead(3), [()]),
    "noisy": (heads.NoisyDiscreteQNetworkHead(**Q), [()]),
    "noisy_dueling": (heads.NoisyDuelingQNetwork(**Q, layer_sizes=(8,)), [()]),
    "dueling": (heads.DuelingQNetwork(**Q, layer_sizes=(8,)), [()]),
    "c51": (heads.DistributionalDiscreteQNetwork(**Q, **ATOMS), [(), (3, 5), (5,)]),
    "dueling_c51": (heads.DistributionalDuelingQNetwork(**Q, **ATOMS, layer_sizes=(8,)), [(), (3, 5), (5,)]),
    "rainbow": (heads.NoisyDistributionalDuelingQNetwork(**Q, **ATOMS, layer_sizes=(8,)), [(), (3, 5), (5,)]),
    "d4pg": (heads.DistributionalContinuousQNetwork(**ATOMS), [(), (5,), (5,)]),
    "qr_dqn": (heads.QuantileDiscreteQNetwork(**Q, num_quantiles=7), [(), (7, 3)]),
    "iqn": (heads.ImplicitQuantileDiscreteQNetwork(**Q, num_quantiles=7, layer_sizes=(8,)), [(), (7, 3), (7,)]),
    "discovered": (
        heads.DiscoveredHead(3, num_predictions=5, num_atoms=7, lstm_size=4, layer_sizes=(8,)),
        [(), (5,), (3, 5), (3, 7), (3, 3)],
    ),
    "policy_value": (heads.PolicyValueHead(heads.CategoricalHead(3), heads.ScalarCriticHead()), [(), ()]),
    "linear": (heads.LinearHead(4, pre_shape=(2, 3)), [(2, 3, 4)]),
}
# Those with a probability of random actions.
GREEDY = ("q", "noisy", "dueling", "c51", "dueling_c51", "rainbow", "qr_dqn", "iqn")


def parts_of(output):
    return output if isinstance(output, tuple) else (output,)
