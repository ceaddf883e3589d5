"""Draw one task of each suite after some random steps, and list what it observes and takes, in a guide.

python scripts/environment_pictures.py --into docs/guides/environments.md        # all, or some: --tasks brax/ant
"""

import argparse
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from stoix_like.base_types import System
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import factory
from stoix_like.envs.opponents import RANDOM
from stoix_like.envs.spaces import Space
from stoix_like.inference.baseline import with_policy
from stoix_like.rendering.episode import Recorder

BEGIN, END = "<!-- pictures of suites -->", "<!-- end of pictures -->"
STEPS, COLOURS, SIDE, DPI = 40, 32, 2.2, 80  # inches, and pixels per inch
# A task of each suite, with what changes it.
TASKS: dict[str, tuple[str, ...]] = {
    "gymnax/pendulum": (),
    "brax/ant": (),
    "mjx/half_cheetah": (),
    "playground/cheetah_run": (),
    "jumanji/snake": (),
    "craftax/classic_pixels": (),
    "navix/door_key_5x5": (),
    "xminigrid/four_rooms": (),
    "jaxmarl/simple_spread": (),
    "jaxtari/pong": (),
    "kinetix/thrust_aim": (),
    "octax/brix": (),
    "popgym_arcade/cartpole_easy": (),
    "pgx/connect_four": (),
    "gymnasium/lunar_lander": (),
    "envpool/pong": (),
}


def described(space: Any) -> str:
    """Describe a space in a cell."""
    if spaces := getattr(space, "spaces", None):
        entries = spaces.items() if hasattr(spaces, "items") else enumerate(spaces)
        return ", ".join(f"{name}: {described(entry)}" for name, entry in entries)
    sizes = getattr(space, "num_values", None) or getattr(space, "n", None)
    return f"{type(space).__name__} {list(space.shape) if space.shape else sizes or ''}".strip()


def draw(task: str, overrides: tuple[str, ...], path: Path) -> tuple[Space, Space]:
    """Draw the state of a task after random steps; return its spaces of observations and actions."""
    config = parse_config(compose_config([f"env={task}", *overrides]))
    env = factory.make_drawn(config.env, config.custom_env)
    try:
        recorder = Recorder(lambda _: with_policy(System(*[None] * 6), RANDOM, env.action_space), env, STEPS)  # type: ignore[list-item]
        recording = recorder.record(None, None, jax.random.key(0))
        scene = env.scene()
        assert scene is not None
        figure = Figure(figsize=(SIDE, SIDE), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        figure.set_dpi(DPI)
        # The last entry may be the first of another episode.
        scene.draw(figure.add_subplot(), recording)(max(len(recording.steps) - 2, 0))
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        picture.quantize(COLOURS).save(path, optimize=True)
        return env.observation_space, env.action_space
    finally:
        env.close()


def main() -> None:
    """Draw tasks, and write their rows into the table of a guide; rows of other tasks stay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--into", type=Path, required=True, help=f"page with {BEGIN} and {END}")
    args = parser.parse_args()
    images = args.into.parent.parent / "images" / "environments"
    images.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        name = f"{task.replace('/', '_')}.png"
        observation, action = draw(task, TASKS[task], images / name)
        before, block, after = re.split(f"(?:{BEGIN}\n|{END})", args.into.read_text())
        rows = dict(re.findall(r"^(?=\|[^`\n]*`env=(\S+?)`)(.*)$", block, re.MULTILINE))
        cells = (
            f"![{task}](../images/environments/{name})",
            f"`env={task}`",
            described(observation),
            described(action),
        )
        rows[task] = f"| {' | '.join(cells)} |"
        lines = [
            "| | task | observation | action |",
            "|---|---|---|---|",
            *(rows[task] for task in TASKS if task in rows),
        ]
        args.into.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")
        print(rows[task], flush=True)


if __name__ == "__main__":
    main()
