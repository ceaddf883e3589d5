"""Join episodes of the checkpoints of a run, from one start state, side by side into one GIF.

    stoix-like train +experiment=ppo_pendulum arch.total_timesteps=1e5 arch.num_evaluation=8 checkpoint.keep=8 \\
        arch.seed=1 hydra.run.dir=RUN
    python scripts/learning_gif.py RUN --out docs/images/learning.gif
"""

import argparse
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageSequence

import stoix_like

WIDTH, COLOURS, TITLE = 220, 32, 18  # pixels of an episode, colours of all, and pixels above


def frames(path: Path, title: str, width: int) -> list[Image.Image]:
    """Read the frames of an episode, with a title above."""
    with Image.open(path) as video:
        shown = [frame.convert("RGB") for frame in ImageSequence.Iterator(video)]
    height = round(shown[0].height * width / shown[0].width)
    panels = []
    for frame in shown:
        panel = Image.new("RGB", (width, height + TITLE), "white")
        panel.paste(frame.resize((width, height)), (0, TITLE))
        ImageDraw.Draw(panel).text((width // 2, 3), title, fill="black", anchor="ma")
        panels.append(panel)
    return panels


def main() -> None:
    """Write the GIF; an episode that ends earlier than another shows its last frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--episodes", type=int, default=4, help="how many, evenly from the first to the last checkpoint"
    )
    parser.add_argument("--every", type=int, default=2, help="frames of which one is shown")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start state")
    args = parser.parse_args()
    steps = sorted(int(path.name) for path in (args.run / "checkpoints").iterdir() if path.name.isdigit())
    chosen = [steps[round(i * (len(steps) - 1) / (args.episodes - 1))] for i in range(args.episodes)]
    panels = []
    with tempfile.TemporaryDirectory() as directory:
        for step in chosen:
            video = Path(directory, f"{step}.gif")
            stoix_like.evaluate(args.run, 1, which=step, seed=args.seed, render=video)
            panels.append(frames(video, f"{step:,} steps", WIDTH)[:: args.every])
        with Image.open(video) as one:
            duration = one.info["duration"] * args.every
    joined = []
    for index in range(max(map(len, panels))):
        row = [panel[min(index, len(panel) - 1)] for panel in panels]
        image = Image.new("RGB", (WIDTH * len(row), row[0].height))
        for place, panel in enumerate(row):
            image.paste(panel, (WIDTH * place, 0))
        joined.append(image.quantize(COLOURS))
    joined[0].save(args.out, save_all=True, append_images=joined[1:], duration=duration, loop=0, optimize=True)


if __name__ == "__main__":
    main()
