"""Losses as pure functions of network outputs.

Losses are means over the batch unless their docstring states otherwise; `…_per_example` is the loss without the mean.
Discounts `d_t` are gamma, and zero where the episode terminated; they stay gamma where it was truncated. Gradients are
stopped through targets, advantages, weights, returns, and the behaviour policy and its values.

Shape letters: B batch, C critics, S samples per state, A actions (or action dimensions), `atoms` and `quantiles` of a
value distribution; `*B` is any number of batch dimensions.
"""

from stoix_like.utils.loss.actor_critic import (
    dpg_loss,
    sac_actor_loss,
    sac_actor_loss_per_example,
    sac_critic_loss,
    sac_critic_loss_per_example,
    sac_temperature_loss,
    target_policy_smoothing,
    td3_critic_loss,
    td3_critic_loss_per_example,
)
from stoix_like.utils.loss.common import approximate_kl
from stoix_like.utils.loss.distributional import (
    categorical_double_q_learning,
    categorical_td_learning,
    categorical_td_learning_per_example,
    hl_gauss_loss,
    implicit_quantile_q_learning,
    implicit_quantile_q_learning_per_example,
    is_outside,
    quantile_critic_loss,
    quantile_critic_loss_per_example,
    quantile_q_learning,
    quantile_q_learning_per_example,
    quantile_regression_loss,
    truncate_quantiles,
)
from stoix_like.utils.loss.mpo import (
    mpo_alpha_loss,
    mpo_policy_loss,
    mpo_temperature_loss,
    vmpo_policy_loss,
    vmpo_temperature_loss,
)
from stoix_like.utils.loss.policy_gradient import (
    SupportsKL,
    awr_loss,
    dpo_loss,
    impala_loss,
    policy_gradient_loss,
    ppo_clip_loss,
    ppo_penalty_loss,
    reinforce_loss,
)
from stoix_like.utils.loss.value_learning import (
    baseline_loss,
    clipped_value_loss,
    cql_penalty,
    double_q_learning,
    double_q_learning_per_example,
    dqn_reg_loss,
    dqn_reg_loss_per_example,
    munchausen_q_learning,
    munchausen_q_learning_per_example,
    q_learning,
    q_learning_per_example,
    sampled_cql_penalty,
    td_learning,
    td_learning_per_example,
)

__all__ = [
    "SupportsKL",
    "approximate_kl",
    "awr_loss",
    "baseline_loss",
    "categorical_double_q_learning",
    "categorical_td_learning",
    "categorical_td_learning_per_example",
    "clipped_value_loss",
    "cql_penalty",
    "double_q_learning",
    "double_q_learning_per_example",
    "dpg_loss",
    "dpo_loss",
    "dqn_reg_loss",
    "dqn_reg_loss_per_example",
    "hl_gauss_loss",
    "impala_loss",
    "implicit_quantile_q_learning",
    "implicit_quantile_q_learning_per_example",
    "is_outside",
    "mpo_alpha_loss",
    "mpo_policy_loss",
    "mpo_temperature_loss",
    "munchausen_q_learning",
    "munchausen_q_learning_per_example",
    "policy_gradient_loss",
    "ppo_clip_loss",
    "ppo_penalty_loss",
    "q_learning",
    "q_learning_per_example",
    "quantile_critic_loss",
    "quantile_critic_loss_per_example",
    "quantile_q_learning",
    "quantile_q_learning_per_example",
    "quantile_regression_loss",
    "reinforce_loss",
    "sac_actor_loss",
    "sac_actor_loss_per_example",
    "sac_critic_loss",
    "sac_critic_loss_per_example",
    "sac_temperature_loss",
    "sampled_cql_penalty",
    "target_policy_smoothing",
    "td3_critic_loss",
    "td3_critic_loss_per_example",
    "td_learning",
    "td_learning_per_example",
    "truncate_quantiles",
    "vmpo_policy_loss",
    "vmpo_temperature_loss",
]
