import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.lab.aot.kernels import Rates, read_program

# A loop of unknown length over a condition and a loop of 16, which reads a row of an array and writes one in place.
BY_HAND = """HloModule jit_train

%fused (param_0: f32[16,8], param_1: s32[], param_2: f32[8]) -> f32[16,8] {
  %param_0 = f32[16,8]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  %param_2 = f32[8]{0} parameter(2)
  %reshape.1 = f32[1,8]{1,0} reshape(%param_2)
  ROOT %dus = f32[16,8]{1,0} dynamic-update-slice(%param_0, %reshape.1, %param_1, %param_1)
}

%inner (state: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %state = (s32[], f32[16,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %rows = f32[16,8]{1,0} get-tuple-element(%state), index=1
  %slice = f32[1,8]{1,0} dynamic-slice(%rows, %i, %i), dynamic_slice_sizes={1,8}
  %row = f32[8]{0} bitcast(%slice)
  %sum = f32[8]{0} all-reduce(%row), replica_groups={{0,1}}, to_apply=%add
  %start = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%sum)
  %copied = f32[8]{0} copy-done(%start)
  %written = f32[16,8]{1,0} fusion(%rows, %i, %copied), kind=kLoop, calls=%fused
  ROOT %next = (s32[], f32[16,8]{1,0}) tuple(%i, %written)
}

%inner_condition (state: (s32[], f32[16,8])) -> pred[] {
  %state = (s32[], f32[16,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %bound = s32[] constant(16)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%one (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %twice = f32[] add(%x, %x)
}

%two (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %twice = f32[] add(%x, %x)
  ROOT %told = f32[] custom-call(%twice), custom_call_target="xla_ffi_python_gpu_callback"
}

%outer (state: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %state = (s32[], f32[16,8]{1,0}) parameter(0)
  %which = pred[] constant(false)
  %x = f32[] constant(1)
  %chosen = f32[] conditional(%which, %x, %x), true_computation=%one, false_computation=%two
  ROOT %while.1 = (s32[], f32[16,8]{1,0}) while(%state), condition=%inner_condition, body=%inner, metadata={op_name="jit(train)/while/body/vmap(rollout)/while"}
}

%outer_condition (state: (s32[], f32[16,8])) -> pred[] {
  %state = (s32[], f32[16,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %bound = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

ENTRY %main (state: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %state = (s32[], f32[16,8]{1,0}) parameter(0)
  ROOT %while.2 = (s32[], f32[16,8]{1,0}) while(%state), condition=%outer_condition, body=%outer, metadata={op_name="jit(train)/while"}
}
"""  # noqa: E501


def test_bodies_of_loops_are_read_with_their_counts():
    program = read_program(BY_HAND)
    (outer,) = program.loops
    branch, inner = outer.loops
    assert (outer.label, outer.trips, outer.kernels) == ("", None, 0)
    assert (branch.label, branch.kernels, branch.transfers) == ("branch", 2, 1)
    # dynamic-slice, all-reduce, copy-start, fusion.
    assert (inner.label, inner.trips, inner.kernels, inner.collectives, inner.transfers) == ("rollout", 16, 4, 1, 0)
    assert program.launches == outer.launches == 2 + 16 * 4
    # Floats of 4 bytes: a row of 8 each read and written by slice and all-reduce; by the copy read, and written to two
    # buffers with a number beside them; by the fusion read, and written to the array with the index.
    assert inner.bytes == 64 + 64 + (32 + 32 + 32 + 4) + (32 + 4 + 32)


def test_what_is_called_belongs_to_the_caller():
    """CPUs call loops from jax 0.12 on, and GPUs what they launch together: neither is a loop of its own."""
    state = "(s32[], f32[16,8]{1,0})"
    called = f"%called (state: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {{\n  %state = {state} parameter(0)\n"
    (line,) = (line for line in BY_HAND.splitlines() if "%while.1" in line)
    text = BY_HAND.replace(line, f"  ROOT %call = {state} call(%state), to_apply=%called")
    text = text.replace("%outer (state", f"{called}{line}\n}}\n\n%outer (state")
    assert read_program(text) == read_program(BY_HAND)


def test_kernels_of_a_gpu_take_as_long_as_their_bytes_or_products_and_those_of_a_tpu_as_predicted():
    """Of 16 runs each: 64 bytes of the slice, 64 of the sum, 100 of the copy and 68 of the fusion."""
    named = 'f32[8]{0} all-reduce(%row), metadata={op_name="jit(train)/while/body/vmap(rollout)/while/body/add"},'
    text = BY_HAND.replace("f32[8]{0} all-reduce(%row),", named)
    rates = Rates(bytes=4.0, cached_bytes=8.0, cache=64, flops=2.0, exact_flops=1.0)
    (outer,) = read_program(text, rates).loops
    kernels = {kernel.origin: (times, kernel.cost) for times, kernel in outer.repeated()}
    assert kernels["slice"] == kernels["rollout/add"] == (16, 16 * 64 / 8)
    assert kernels["start"] == (16, 16 * 100 / 4)
    # Of the branch, the sum reads a number twice and writes one, the call reads one and writes one.
    assert outer.cost == 16 * (8.0 + 8.0 + 25.0 + 17.0) + (12 + 8) / 8
    # A product of 3 x 8 and 8 x 4 in the fusion: two operations for each term, in bfloat16 at twice the rate, and where
    # it is exact at that of the other units.
    exact = ", operand_precision={highest,highest}"
    for dtype, precision, cost in (("f32", "", 96.0), ("bf16", "", 48.0), ("f32", exact, 192.0)):
        product = f"""  %left = {dtype}[3,8]{{1,0}} constant(0)
  %right = {dtype}[8,4]{{1,0}} constant(0)
  %dot.1 = f32[3,4]{{1,0}} dot(%left, %right), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{precision}
  ROOT %dus"""
        (outer,) = read_program(text.replace("  ROOT %dus", product), rates).loops
        assert {kernel.origin: kernel.cost / 16 for _, kernel in outer.repeated()}["written"] == cost
        assert outer.products == 16 * 192
    # An image of 5 x 5 and 2 channels by kernels of 3 x 3 to 4 channels: 2 x 25 x 4 x 18 operations.
    image = "%dus = f32[1,5,5,4]{3,2,1,0} convolution(%left, %right), window={size=3x3}, dim_labels=b01f_01io->b01f"
    layers = "  %left = f32[1,5,5,2]{3,2,1,0} constant(0)\n  %right = f32[3,3,2,4]{3,2,1,0} constant(0)\n"
    assert read_program(re.sub(r"  ROOT %dus = .*", f"{layers}  ROOT {image}", text)).products == 16 * 3600
    # cuDNN's, and its gradients, have as many terms.
    for kind, result, left, right in (
        ("BiasActivationForward", "1,5,5,4", "1,5,5,2", "4,3,3,2"),
        ("BackwardFilter", "4,3,3,2", "1,5,5,2", "1,5,5,4"),
        ("BackwardInput", "1,5,5,2", "1,5,5,4", "4,3,3,2"),
    ):
        call = f"(f32[{result}]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%left, %right), dim_labels=b01f_o01i->b01f"
        operands = f"  %left = f32[{left}]{{3,2,1,0}} constant(0)\n  %right = f32[{right}]{{3,2,1,0}} constant(0)\n"
        line = f'{operands}  ROOT %dus = {call}, custom_call_target="__cudnn$conv{kind}"'
        assert read_program(re.sub(r"  ROOT %dus = .*", lambda _, line=line: line, text)).products == 16 * 3600
    # Our own kernels tell the operations of a block; here are 6 of them.
    told = "\\22flops\\22: \\2210\\22, \\22loads\\22: \\2264\\22"
    config = f'backend_config={{grid_x = 3 : i32, grid_y = 2 : i32, m = "{{{told}}}"}}'
    own = f'custom-call(%twice), custom_call_target="t", {config}'
    with_own = re.sub(r"custom-call\(.*", lambda _: own, BY_HAND)
    assert read_program(with_own).products == 60
    # 6 x 64 bytes of the cache take longer than 8 of its arrays and 60 operations.
    assert read_program(with_own, rates).cost - read_program(BY_HAND, rates).cost == 384 / 8 - 8 / 8
    # A TPU's are all told, in cycles.
    tpu = BY_HAND.replace("calls=%fused", 'calls=%fused, backend_config={"window_config":{"estimated_cycles":"1934"}}')
    assert read_program(tpu).cost == 16 * 1934
    assert read_program(BY_HAND).cost == 0


@pytest.mark.optimized
def test_the_program_of_a_real_compiler_is_read():
    def train(x, updates):
        def step(x, _):
            return jnp.tanh(x @ x), x.sum()

        def update(_, x):
            with jax.named_scope("rollout"):
                x, sums = jax.lax.scan(step, x, None, 7)
            with jax.named_scope("update"):
                return x + sums.sum()

        return jax.lax.fori_loop(0, updates, update, x)

    compiled = jax.jit(train).lower(jnp.ones((8, 8)), np.int32(3)).compile()
    (update,) = (body for body in read_program(compiled.as_text()).all() if body.trips is None)
    (rollout,) = (body for body in update.all() if body.label == "rollout")
    assert rollout.trips == 7
    assert 1 <= rollout.kernels <= 6
    assert update.launches >= 7 * rollout.kernels
    # At least, the matrix is read and written.
    assert update.bytes_accessed >= 7 * 2 * 8 * 8 * 4
