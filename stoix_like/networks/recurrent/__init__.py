"""Recurrent cells: gated, linear in their state, with a matrix as memory, or attending to the last steps."""

from typing import TYPE_CHECKING

from stoix_like.interpreter import on_first_use

if TYPE_CHECKING:
    from stoix_like.networks.recurrent.gru import step_gru, unroll_gru
    from stoix_like.networks.recurrent.gtrxl import GTrXLCell
    from stoix_like.networks.recurrent.linear import LinearCell, LRUCell, MinGRUCell, linear_recurrence
    from stoix_like.networks.recurrent.mlstm import MLSTMCell
    from stoix_like.networks.recurrent.parallel import ParallelCell
    from stoix_like.networks.recurrent.s5 import MAX_STATES, S5Cell
else:
    __getattr__, __dir__ = on_first_use(__name__, "gru", "gtrxl", "linear", "mlstm", "parallel", "s5")

__all__ = [
    "MAX_STATES",
    "GTrXLCell",
    "LRUCell",
    "LinearCell",
    "MLSTMCell",
    "MinGRUCell",
    "ParallelCell",
    "S5Cell",
    "linear_recurrence",
    "step_gru",
    "unroll_gru",
]
