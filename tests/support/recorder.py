"""A system that records what the training program passes to it."""

import jax
import numpy as np

from stoix_like.architectures.anakin import make_program
from stoix_like.architectures.axes import make_axes, make_mesh
from stoix_like.architectures.types import NO_INPUTS, ProgramSpec
from stoix_like.devices import find_devices
from stoix_like.envs import factory
from support.set_ups import config_of
from support.toys import Config, make_recorder


def recorder_program(
    num_devices=1, warmup_steps=0, num_envs=2, probe="value", rollout_length=3, population=1, ignore=False, **options
):
    mesh = make_mesh(find_devices(num_devices))
    env = factory.make(config_of(f"env=probe/{probe}").env)

    def build(hyperparams, inputs):
        return make_recorder(make_axes(mesh), Config(rollout_length=rollout_length, **options, **hyperparams))

    return make_program(build, env, mesh, ProgramSpec(population, num_envs, rollout_length, warmup_steps, ignore))


def start(program, num_shards, seed=0):
    key, shards_key = jax.random.split(jax.random.key(seed))
    return program.init({}, key, jax.random.split(shards_key, num_shards), NO_INPUTS)


def train(program, state, num_updates):
    return program.train(state, {}, np.int32(num_updates), np.bool_(True), NO_INPUTS)
