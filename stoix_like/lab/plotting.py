"""The command `plot`: pictures of runs, of several kinds with options of their own.

Everything but the parsers is imported when a picture is drawn.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stoix_like.cli.options import add_choice, add_run, add_runs, add_selection, load_policy
from stoix_like.errors import ConfigError, listed, nearest
from stoix_like.interpreter import make_importable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT = "curves"


class PlotKind(NamedTuple):
    """A kind of pictures."""

    about: str  # what they show
    add: Callable[[argparse.ArgumentParser], None]  # adds the arguments to a parser, but for `--out`
    draw: Callable[[argparse.Namespace], Figure | None]  # returns the figure; None where it wrote the file itself
    animations: tuple[str, ...] = ()  # further endings that `out` may have


def plot(words: Sequence[str]) -> str:
    """Draw one picture."""
    first = argparse.ArgumentParser("stoix-like plot", add_help=False, allow_abbrev=False)
    first.add_argument("--kind", default=DEFAULT)
    known, rest = first.parse_known_args(words)
    if known.kind not in KINDS:
        raise ConfigError(f"--kind {known.kind} is unknown: {nearest(known.kind, KINDS)}")
    kind = KINDS[known.kind]
    kinds = [f"  {name:12}{one.about}{' (default)' * (name == DEFAULT)}" for name, one in KINDS.items()]
    parser = argparse.ArgumentParser(
        f"stoix-like plot --kind {known.kind}",
        description=f"Plot {kind.about}.",
        epilog="\n".join(["kinds, each with its own options (stoix-like plot --kind KIND --help):", *kinds]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kind.add(parser)
    endings = (".png", ".svg", ".pdf", ".html", *kind.animations)
    parser.add_argument("--out", type=Path, required=True, help=f"the file: {listed(endings, 'or')}")
    style = parser.add_argument_group("style")
    style.add_argument("--title", default="", help="title above the picture")
    style.add_argument("--width", type=float, help="width in inches (default: about 4 to 7 for each panel)")
    style.add_argument("--dpi", type=int, default=150, help="dots per inch of a .png (default: 150)")
    args = parser.parse_args(rest, known)
    if getattr(args, "trust", False):
        make_importable()
    from stoix_like.lab.analysis import figures

    figures.check_output(args.out, endings)
    if (figure := kind.draw(args)) is not None:
        figures.save(figure, args.out, args.title, args.width, args.dpi)
    return f"drawn to {args.out}"


def _add_curves(parser: argparse.ArgumentParser) -> None:
    _add_efficiency(parser)
    parser.add_argument("--x", help="env_steps (default) or wall_seconds")
    parser.add_argument("--center", help="iqm (default), mean or median")
    parser.add_argument("--band", help="bootstrap (default), percentile, deviation, error or none")
    tests = "welch, mann_whitney or permutation"
    parser.add_argument("--test", help=f"mark where it decides between two algorithms: {tests}")


def _add_labelled(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    about = "name of an algorithm; once for each, in their order"
    parser.add_argument("--label", action="append", metavar="NAME", help=about)


def _add_efficiency(parser: argparse.ArgumentParser) -> None:
    _add_labelled(parser)
    parser.add_argument("--metric", help="the metric (default: eval/episode_return_mean)")


def _add_population(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    about = "may be repeated (default: all that vary; of a heat map the first two)"
    parser.add_argument("--hyperparam", action="append", default=[], help=about)


def _add_trajectory(parser: argparse.ArgumentParser, number: str = "up to four", default: str = "four") -> None:
    add_run(parser)
    first = f"the first {default} that the environment names, or the two entries that vary most"
    about = f"pole_angle, or observation[2]; {number} (default: {first})"
    parser.add_argument("--features", nargs="+", default=[], metavar="NAME", help=about)
    parser.add_argument("--episodes", type=int, default=10, help="episodes to visit states in (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start states (default: 0)")
    add_choice(parser)


def _add_slice(parser: argparse.ArgumentParser) -> None:
    _add_trajectory(parser, "one or two", "two")
    about = "values of features that do not vary"
    parser.add_argument("--fixed", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    about = "those of a typical visited state (typical, default), or averages over sampled ones (sampled)"
    parser.add_argument("--others", default="typical", help=f"the other features: {about}")


def _add_search(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--step", type=int, default=0, help="the step of the episode (default: 0)")
    parser.add_argument("--simulations", type=int, help="simulations per step (default: as evaluations of the run)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start state (default: 0)")
    add_choice(parser)


def _add_dream(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--context", type=int, default=5, help="observations that the model sees (default: 5)")
    parser.add_argument("--length", type=int, default=50, help="observations at most (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start state (default: 0)")
    add_choice(parser)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    add = parser.add_argument
    add("--x", metavar="KEY", help="key of the length or delay (default: the number in env.kwargs that differs)")
    add("--by", action="append", default=[], metavar="KEY", help="further key that tells lines apart; may be repeated")
    add("--score", default="final", help="final (default) return of each seed, or that of its best policy")


def _draw_runs(args: argparse.Namespace) -> Figure:
    from stoix_like.lab import analysis
    from stoix_like.lab.analysis import figures

    algorithms = analysis.read(args.runs, args.by)
    if labels := getattr(args, "label", None):
        if len(labels) != len(algorithms):
            shown = ", ".join(algorithm.label for algorithm in algorithms)
            raise ConfigError(f"--label is given {len(labels)} times: name each of {shown}, in this order")
        algorithms = [one._replace(label=label) for one, label in zip(algorithms, labels, strict=True)]
    own = ("runs", "by", "label", "out", "title", "width", "dpi", "hyperparam")
    given = {name: value for name, value in vars(args).items() if name not in own and value is not None}
    return figures.draw(algorithms, hyperparams=getattr(args, "hyperparam", ()), **given)


def _draw_policy(args: argparse.Namespace) -> Figure:
    from stoix_like.lab import analysis

    sliced = {"fixed": _numbers(args.fixed), "others": args.others} if hasattr(args, "fixed") else {}
    draw: Callable[..., Any] = getattr(analysis, f"draw_{args.kind}")
    with contextlib.closing(load_policy(args)) as policy:
        figure: Figure = draw(policy, args.features, visits=policy.play(args.episodes, args.seed), **sliced)
    return figure


def _draw_search(args: argparse.Namespace) -> Figure:
    from stoix_like.lab.analysis.searches import draw_search
    from stoix_like.lab.searches import search_episode

    options = {"seed": args.seed, "simulations": args.simulations, "trust": args.trust}
    episode = search_episode(args.run_dir, args.which, args.member, **options)
    return draw_search(episode, args.step)


def _draw_dream(args: argparse.Namespace) -> Figure | None:
    from stoix_like.lab.analysis.dreams import draw_dream, dream_episode
    from stoix_like.rendering.animation import FORMATS, check_writer
    from stoix_like.rendering.dreams import write_dream

    ending = args.out.suffix[1:]
    if ending in FORMATS:
        check_writer(ending, f"--out {args.out}")
    options = {"context": args.context, "length": args.length, "seed": args.seed, "trust": args.trust}
    episode = dream_episode(args.run_dir, args.which, args.member, **options)
    if ending not in FORMATS:
        return draw_dream(episode)
    write_dream(args.out, episode)
    return None


def _draw_memory(args: argparse.Namespace) -> Figure:
    from stoix_like.lab.analysis.groups import SCORES
    from stoix_like.lab.analysis.memory_plot import draw_memory

    if args.score not in SCORES:
        raise ConfigError(f"--score {args.score} is unknown: {nearest(args.score, SCORES)}")
    return draw_memory(args.runs, args.x, args.score, args.by)


def _numbers(given: Sequence[str]) -> dict[str, float]:
    """Parse `name=value`."""
    found = {}
    for word in given:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"--fixed {word}: use name=number, such as pole_angle=0.1") from None
    return found


KINDS = {
    "curves": PlotKind("learning curves by environment", _add_curves, _draw_runs),
    "profiles": PlotKind("the share of runs above each return", _add_labelled, _draw_runs),
    "efficiency": PlotKind("the return over seeds and environments against steps", _add_efficiency, _draw_runs),
    "slices": PlotKind("the return of a population over each hyperparameter", _add_population, _draw_runs),
    "heatmap": PlotKind("the return of a population over two hyperparameters", _add_population, _draw_runs),
    "lineage": PlotKind("the hyperparameters of a population over time", _add_population, _draw_runs),
    "policy": PlotKind("a policy over features of the observation", _add_slice, _draw_policy),
    "critic": PlotKind("a critic over features of the observation", _add_slice, _draw_policy),
    "trajectory": PlotKind(
        "episodes of a policy, and histograms of rewards, actions and returns", _add_trajectory, _draw_policy
    ),
    "search": PlotKind("what the search of a step found, and the values over steps", _add_search, _draw_search),
    "dream": PlotKind("what a world model predicts of an episode", _add_dream, _draw_dream, (".gif", ".mp4")),
    "memory": PlotKind("returns over the length of a task, a line per cell", _add_memory, _draw_memory),
}
"""The kinds by name."""
