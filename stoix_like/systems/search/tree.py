"""Tree search by mctx, which every system of this family acts and learns with.

Shape letters: N environments, K actions of a node: all A discrete ones, or sampled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import mctx

from stoix_like.base_types import PyTree, SearchOutput, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, Range, above, at_least, between, one_of

# Keeps an action legal if its prior rounds to 0.
_TINY = 1e-30

RecurrentFn = Callable[[PyTree, jax.Array, jax.Array, PyTree], tuple[mctx.RecurrentFnOutput, PyTree]]
"""`(params, key, action [N], node) -> (output, node)`: the node that an action leads to, and the way there."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Part):
    """Hyperparameters of a tree search."""

    num_simulations: Annotated[int, between(1, 2**16)]  # simulations per step of training
    evaluation_simulations: Annotated[int, between(0, 2**16)]  # simulations per step of an evaluation
    max_depth: Annotated[int | None, between(1, 2**16)]  # largest depth of a simulation, in actions
    search_method: Annotated[str, one_of("gumbel", "puct")]
    num_considered_actions: Annotated[int, between(1, 2**16)]  # actions of the root to start with (Gumbel)
    gumbel_scale: Annotated[float, at_least(0.0)]  # scale of the noise that selects them
    value_scale: Annotated[float, above(0.0)]  # weight of values against the prior (Gumbel, sigma's c_scale)
    maxvisit_init: Annotated[float, at_least(0.0)]  # added to the largest visit count there (Gumbel, c_visit)
    dirichlet_fraction: Annotated[float, between(0.0, 1.0)]  # share of noise in the prior of the root
    dirichlet_alpha: Annotated[float, above(0.0)]  # concentration of this noise (PUCT)
    pb_c_init: Annotated[float, at_least(0.0)]  # weight of the prior against values (PUCT)
    pb_c_base: Annotated[float, above(0.0)]  # visits after which this weight grows (PUCT)
    search_temperature: Annotated[float, Range(0.0, 1e6, without_low=True)]  # temperature of visits, in training (PUCT)

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that the depth can be reached."""
        most = max(self.num_simulations, self.evaluation_simulations)
        if self.max_depth is not None and self.max_depth > most:
            raise ConfigError(
                f"system.max_depth={self.max_depth} is deeper than {most} simulations can reach"
                f" (system.num_simulations, system.evaluation_simulations): use at most {most}, or null"
            )


def search(
    config: SearchConfig,
    params: PyTree,
    key: jax.Array,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    greedy: bool = False,
) -> mctx.PolicyOutput:
    """Search from N states at once.

    An action with the lowest finite number as prior logit is illegal: mctx takes it neither at the root, nor in the
    tree, where its prior is zero.

    `root`: prior logits `[N, K]`, values `[N]` and nodes `[N, ...]` to search from.
    Returns actions `[N]`, their probabilities `[N, K]`, which the policy learns, and the tree.
    """
    illegal = is_illegal(root.prior_logits)
    if config.search_method == "puct" and not greedy:
        noise_key, key = jax.random.split(key)
        root = with_noise(config, root, illegal, noise_key)
    depth = None if config.max_depth is None else min(config.max_depth, num_simulations)
    arguments = (params, key, root, recurrent_fn, num_simulations, illegal, depth)
    with jax.numpy_rank_promotion("allow"):
        if config.search_method == "gumbel":
            return mctx.gumbel_muzero_policy(
                *arguments,
                qtransform=partial(
                    mctx.qtransform_completed_by_mix_value,
                    value_scale=config.value_scale,
                    maxvisit_init=config.maxvisit_init,
                ),
                max_num_considered_actions=config.num_considered_actions,
                gumbel_scale=0.0 if greedy else config.gumbel_scale,
            )
        return mctx.muzero_policy(
            *arguments,
            dirichlet_fraction=0.0,
            pb_c_init=config.pb_c_init,
            pb_c_base=config.pb_c_base,
            temperature=0.0 if greedy else config.search_temperature,
        )


def with_noise(config: SearchConfig, root: mctx.RootFnOutput, illegal: jax.Array, key: jax.Array) -> mctx.RootFnOutput:
    """Mix Dirichlet noise over legal actions into the prior of the root; mctx draws it over all of them."""
    lowest, logits = jnp.finfo(root.prior_logits.dtype).min, root.prior_logits
    noise = jax.random.loggamma(key, config.dirichlet_alpha, logits.shape, logits.dtype)
    noise = jax.nn.softmax(jnp.where(illegal, lowest, noise))
    prior = (1.0 - config.dirichlet_fraction) * jax.nn.softmax(logits) + config.dirichlet_fraction * noise
    return root.replace(prior_logits=jnp.where(illegal, lowest, jnp.log(jnp.maximum(prior, _TINY))))


def is_illegal(prior_logits: jax.Array) -> jax.Array:
    """Return where actions are illegal, as `mask_logits` marks them."""
    return prior_logits <= jnp.finfo(prior_logits.dtype).min


def describe(
    root: mctx.RootFnOutput, output: mctx.PolicyOutput, action: jax.Array, candidates: jax.Array | None = None
) -> SearchOutput:
    """Describe what a search found out about the actions of its roots. `action`: `[N, ...]`, the actions taken."""
    found = output.search_tree.summary()
    return SearchOutput(
        action=action,
        candidates=candidates,
        prior=jax.nn.softmax(root.prior_logits),
        weights=output.action_weights,
        visits=found.visit_counts,
        action_values=jnp.where(found.visit_counts > 0, found.qvalues, jnp.nan),
        prior_value=root.value,
        value=found.value,
    )


def expected_value(found: SearchOutput) -> jax.Array:
    """Compute the values of states under the policy that a search found.

        v = sum_a w_a q_a,  where q_a is the value before the search for an action without a visit

    Returns `[N]`.
    """
    values = jnp.where(jnp.isnan(found.action_values), found.prior_value[:, None], found.action_values)
    return jnp.sum(found.weights * values, axis=-1)
