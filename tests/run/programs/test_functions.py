import jax

from stoix_like.run.programs.functions import run_programs
from support.set_ups import setup_of
from support.toy_runs import TOY_RUN


def test_the_state_of_every_program_lies_on_the_mesh():
    setup = setup_of(*TOY_RUN, "arch.num_devices=2")
    programs = {program.name: program for program in run_programs(setup)}
    assert list(programs) == ["init", "train", "evaluate", "select"]
    state = programs["train"].args[0]
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(state)} == {setup.mesh}
    assert {leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.shared)} == {True}
    assert {leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.shards)} == {False}
    # Left out, the unused ones of another run with the same text would be other ones.
    lowered = programs["evaluate"].function.lower(*programs["evaluate"].args)
    assert len(lowered._lowering.compile_args["kept_var_idx"]) == lowered.in_tree.num_leaves
