"""An environment on a MuJoCo model, whose state is an `mjx.Data`: without contacts, many of its arrays are empty."""

import jax
import jax.numpy as jnp
import mujoco
from mujoco import mjx

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Environment
from stoix_like.envs.environment import restart, transition

MODEL = """
<mujoco>
  <option timestep="0.02" iterations="2"/>
  <worldbody>
    <body>
      <joint name="hinge" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.5" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" gear="2" ctrllimited="true" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


class Hinge(Environment):
    """A rod on a hinge, to be held upright."""

    observation_space = Box(-jnp.inf, jnp.inf, (3,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self):
        self.model = mjx.put_model(mujoco.MjModel.from_xml_string(MODEL))

    def reset(self, key):
        data = mjx.make_data(self.model)
        data = mjx.forward(self.model, data.replace(qpos=jax.random.uniform(key, (1,), minval=-0.5, maxval=0.5)))
        return data, restart(self.observe(data))

    def step(self, key, state, action):
        del key
        data = mjx.step(self.model, state.replace(ctrl=action))
        fallen = jnp.abs(data.qpos[0]) > 1.0
        return data, transition(self.observe(data), jnp.cos(data.qpos[0]), fallen, data.time >= 1.0)

    def observe(self, data):
        return Observation(jnp.stack([jnp.sin(data.qpos[0]), jnp.cos(data.qpos[0]), data.qvel[0]]))
