import re

import pytest

from support.programs import make_program
from support.selections import first

OWN = ["env=own", "env._target_=support.games.Wages", "network.share=false"]
CELLS = ["system=ppo/rec_ppo", *(f"network.{name}_network.rnn_layer.num_layers=3" for name in ("actor", "critic"))]


@pytest.mark.parametrize(
    "overrides",
    first(1, [OWN, CELLS, ["arch.population.size=2"], [*OWN, "arch.population.size=2", "arch.update_batch_size=2"]]),
    ids=["agents", "cells", "members", "agents of members"],
)
def test_no_matrices_are_decomposed_as_a_batch(overrides):
    # Two batches at a time wait for each other where XLA has two threads.
    _, program, arguments = make_program(overrides)
    text = program.init.lower(*arguments).as_text()
    shapes = re.findall(r"@lapack_sgeqrf_ffi\(.*: \(tensor<([\dx]+)xf32>\)", text)
    assert shapes
    assert all(shape.count("x") == 1 for shape in shapes)
