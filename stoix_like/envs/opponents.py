"""Opponents in games for two, which keys of the configuration name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.user_code import guarded, import_object

Opponent = Callable[[jax.Array, Any], jax.Array]
"""`(key, game) -> action`, with a typed PRNG key, the state of the game, and a legal action of the player to move."""

RANDOM = "random"
KEY = "env.eval_opponent"
_FORM = "(key, game) -> action, a scalar integer"


def find_opponent(
    opponent: Any, start: Callable[[jax.Array], Any], random: Opponent, key: str = KEY, names: str = RANDOM
) -> Opponent:
    """Return the opponent that a key of the configuration names."""
    if opponent == RANDOM:
        return random
    advice = f"it must be {names} or the import path of a function {_FORM}"
    function = opponent if callable(opponent) else import_object(opponent, key, advice)
    play = guarded(function, key, opponent, _FORM, _fault)
    with jax.numpy_rank_promotion("allow"):
        jax.eval_shape(lambda key: play(key, start(key)), jax.random.key(0))
    return play


def _fault(action: Any) -> str | None:
    is_action = jnp.shape(action) == () and jnp.issubdtype(jnp.result_type(action), jnp.integer)
    return None if is_action else f"returns {jnp.result_type(action)}{list(jnp.shape(action))}"
