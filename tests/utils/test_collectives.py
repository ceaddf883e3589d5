import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from stoix_like.networks.convolution import make_convolution
from stoix_like.utils.collectives import mean_over, sum_over


@pytest.mark.parametrize(
    ("platform", "collective", "product"),
    [
        ("cpu", "all_gather", "dot_general"),
        ("tpu", "psum", "conv_general_dilated"),
        ("gpu", "psum", "conv_general_dilated"),
    ],
)
def test_the_devices_of_the_mesh_choose_the_form_and_not_those_of_this_machine(platform, collective, product):
    device = AbstractDevice("any", 1, platform)
    mesh = AbstractMesh((2,), ("device",), axis_types=(AxisType.Auto,), abstract_device=device)

    def loss(images):
        module = make_convolution(2, (3, 3))
        return mean_over(module.init_with_output(jax.random.key(0), images)[0], ("device",))

    sharded = jax.shard_map(
        loss, mesh=mesh, in_specs=PartitionSpec("device"), out_specs=PartitionSpec(), check_vma=False
    )
    program = str(jax.make_jaxpr(sharded)(jnp.ones((2, 6, 6, 1))))
    assert f" {collective}" in program
    assert f" {product}[" in program
    others = {"all_gather", "psum", "dot_general", "conv_general_dilated"} - {collective, product}
    assert [other for other in others if f" {other}" in program] == []


# On CPUs, shards of 1, 2 and 3, 5: the sums are 4 and 7, the means 2 and 3.5, and constants count once per shard.
@pytest.mark.parametrize("check_vma", [True, False])
def test_sums_are_equal_on_all_shards(check_vma):
    mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    def both(x):
        counted = {"count": jnp.ones((), jnp.int32), "flag": x[0, 0] > 0.0}
        return sum_over({"x": x[0], **counted}, ("device",)), mean_over({"x": x[0], **counted}, ("device",))

    sharded = jax.shard_map(
        both, mesh=mesh, in_specs=PartitionSpec("device"), out_specs=PartitionSpec(), check_vma=check_vma
    )
    sums, means = jax.jit(sharded)(jnp.array([[1.0, 2.0], [3.0, 5.0]]))
    assert [*sums["x"].tolist(), int(sums["count"]), float(sums["flag"])] == [4.0, 7.0, 2, 2.0]
    assert [*means["x"].tolist(), float(means["flag"])] == [2.0, 3.5, 1.0]
