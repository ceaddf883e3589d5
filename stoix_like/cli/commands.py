"""Commands of `stoix-like` around runs: `runs`, `compare`, `plot`, `export`, `report`, `sweep`, `fetch` and their kin.

Everything but the parsers is imported when a command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoix_like.interpreter import make_importable

if TYPE_CHECKING:
    from stoix_like.policies.policy import Policy

_PICTURES = {
    "plot-policy": "plot a policy over features of the observation",
    "plot-critic": "plot a critic over features of the observation",
    "plot-trajectory": "plot episodes of a policy, and histograms of rewards, actions and returns",
}
NAMES = (
    "runs",
    "compare",
    "plot",
    *_PICTURES,
    "plot-search",
    "plot-dream",
    "plot-memory",
    "ladder",
    "report",
    "export",
    "push",
    "sweep",
    "tune",
    "fetch",
)
TRUST = "allow the run's configuration to name code from outside this package"
_RUNS = "run directories, or directories that contain runs, or their addresses"


def add(commands: Any, show: Callable[[str], None]) -> None:
    """Add the parsers of the commands.

    Args:
        commands: the subparsers of the program.
        show: prints a text.
    """
    listing = commands.add_parser("runs", help="list runs with their status, return and budget")
    listing.add_argument(
        "runs", type=Path, nargs="*", default=[Path("runs")], metavar="RUN", help=f"{_RUNS} (default: runs)"
    )
    listing.set_defaults(run=lambda args: show(_runs(args)))

    comparing = commands.add_parser("compare", help="compare algorithms by their returns over seeds and environments")
    _add_selection(comparing)
    comparing.add_argument("--score", default="final", help="final (default) or best evaluated return of each seed")
    comparing.add_argument(
        "--test", default="welch", help="welch (default), student, mann_whitney, ranked_t, permutation or bootstrap"
    )
    comparing.add_argument("--level", type=float, default=0.05, help="significance level (default: 0.05)")
    comparing.add_argument(
        "--correction", default="holm", help="for several comparisons: holm (default), bonferroni, fdr_bh or none"
    )
    comparing.add_argument("--target", type=float, help="optimal return, for the optimality gap (default: the best)")
    comparing.set_defaults(run=lambda args: show(_compare(args)))

    plotting = commands.add_parser("plot", help="plot learning curves, profiles and populations")
    _add_selection(plotting)
    plotting.add_argument("--out", type=Path, required=True, help="the file: .png, .svg, .pdf or .html")
    plotting.add_argument(
        "--kind", default="curves", help="curves (default), profiles, efficiency, slices, heatmap or lineage"
    )
    plotting.add_argument("--metric", help="of curves and efficiency (default: eval/episode_return_mean)")
    plotting.add_argument("--x", help="of curves: env_steps (default) or wall_seconds")
    plotting.add_argument("--center", help="of curves: iqm (default), mean or median")
    plotting.add_argument("--band", help="of curves: bootstrap (default), percentile, deviation, error or none")
    plotting.add_argument("--test", help="of curves: mark where this test decides between two algorithms")
    plotting.add_argument(
        "--hyperparam", action="append", default=[], help="of slices, lineage and heatmap; give two for heatmap"
    )
    plotting.set_defaults(run=lambda args: show(_plot(args)))

    for name, about in _PICTURES.items():
        picturing = commands.add_parser(name, help=about)
        _add_picture(picturing, sliced=name != "plot-trajectory")
        picturing.set_defaults(run=lambda args: show(_picture(args)))

    climbing = commands.add_parser(
        "ladder", help="let the kept checkpoints of a self-play run play each other, with Elo"
    )
    _add_ladder(climbing)
    climbing.set_defaults(run=lambda args: show(_ladder(args)))
    searching = commands.add_parser(
        "plot-search", help="plot what the search of a step found, and the values over steps"
    )
    searching.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")
    searching.add_argument("--out", type=Path, required=True, help="the file: .png, .svg, .pdf or .html")
    searching.add_argument("--step", type=int, default=0, help="the step of the episode (default: 0)")
    searching.add_argument("--simulations", type=int, help="simulations per step (default: as evaluations of the run)")
    searching.add_argument("--seed", type=int, default=0, help="seed of the start state (default: 0)")
    _add_choice(searching)
    searching.set_defaults(run=lambda args: show(_search(args)))
    dreaming = commands.add_parser("plot-dream", help="plot what a world model predicts of an episode")
    dreaming.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")
    dreaming.add_argument("--out", type=Path, required=True, help="the file: .png, .svg, .pdf, .html, .gif or .mp4")
    dreaming.add_argument("--context", type=int, default=5, help="observations that the model sees (default: 5)")
    dreaming.add_argument("--length", type=int, default=50, help="observations at most (default: 50)")
    dreaming.add_argument("--seed", type=int, default=0, help="seed of the start state (default: 0)")
    _add_choice(dreaming)
    dreaming.set_defaults(run=lambda args: show(_dream(args)))

    remembering = commands.add_parser("plot-memory", help="plot returns over the length of a task, a line per cell")
    remembering.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=_RUNS)
    remembering.add_argument("--out", type=Path, required=True, help="the file: .png, .svg, .pdf or .html")
    remembering.add_argument(
        "--x", metavar="KEY", help="key of the length or delay (default: the number in env.kwargs that differs)"
    )
    remembering.add_argument(
        "--by", action="append", default=[], metavar="KEY", help="further key that tells lines apart; may be repeated"
    )
    remembering.add_argument("--score", default="final", help="final (default) or best evaluated return of each seed")
    remembering.set_defaults(run=lambda args: show(_memory(args)))

    reporting = commands.add_parser("report", help="write one page about runs, which needs no network")
    _add_selection(reporting)
    reporting.add_argument("--out", type=Path, required=True, help="the file: .html")
    reporting.add_argument("--no-animation", action="store_true", help="do not render an episode of the best policy")
    reporting.set_defaults(run=lambda args: show(_report(args)))

    exporting = commands.add_parser("export", help="write a policy to one file that runs without this package")
    exporting.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")
    exporting.add_argument("--out", type=Path, required=True, help="the file: .stablehlo, .onnx or .npz")
    exporting.add_argument("--format", help="stablehlo, onnx or npz (default: that of the ending, or stablehlo)")
    exporting.add_argument(
        "--greedy",
        action=argparse.BooleanOptionalAction,
        help="act by the mode of the policy, or by sampling (default: as arch.evaluation_greedy of the run)",
    )
    _add_choice(exporting)
    exporting.set_defaults(run=lambda args: show(_export(args)))

    pushing = commands.add_parser("push", help="upload a trained run and a model card to the Hugging Face Hub")
    pushing.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")
    pushing.add_argument("repo", help="the repository: owner/name")
    pushing.add_argument("--private", action="store_true", help="create a private repository")
    pushing.set_defaults(run=lambda args: show(_push(args)))

    sweeping = commands.add_parser("sweep", help="optimise hyperparameters by Optuna")
    sweeping.add_argument(
        "overrides",
        nargs="+",
        help="sweep.space={actor_lr: {log_uniform: [1e-5, 1e-2]}} sweep.trials=64, and overrides of all trials",
    )
    sweeping.set_defaults(run=lambda args: show(_sweep(args)))

    tuning = commands.add_parser("tune", help="tune a system for an environment within a wall time")
    tuning.add_argument("env", metavar="ENV", help="gymnax/acrobot, or the import path of yours: my_module.MyEnv")
    tuning.add_argument("--system", default="ppo/ff_ppo", help="the system (default: ppo/ff_ppo)")
    tuning.add_argument(
        "--budget", default="10min", help="wall time, 90s, 10min or 2h, or environment steps, 5e7 (default: 10min)"
    )
    tuning.add_argument(
        "--space",
        help="further ranges, or others: {clip_eps: {uniform: [0.1, 0.3]}, gamma: null} (default: the system's)",
    )
    tuning.add_argument("--slots", type=int, help="settings that train at a time (default: 16, or 8 for short budgets)")
    tuning.add_argument("--out", type=Path, help="the directory (default: sweeps/tune/SYSTEM/ENV)")
    tuning.add_argument("overrides", nargs="*", help="overrides of all trials; what they set is not searched")
    tuning.set_defaults(run=lambda args: show(_tune(args)))

    fetching = commands.add_parser("fetch", help="download data that a system needs: the weights of Disco103")
    fetching.add_argument("data", choices=("disco103",), help="disco103: the meta-network of disco_rl/ff_disco103")
    fetching.add_argument("--out", type=Path, help="the file to write (default: in a directory of this user)")
    fetching.add_argument("--url", help="another address of the same file: https://…, or file://…")
    fetching.set_defaults(run=lambda args: show(_fetch(args)))


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=_RUNS)
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="KEY",
        help="key whose value makes an algorithm, such as system.name; may be repeated (default: all but seeds and"
        " environments)",
    )


def _add_picture(parser: argparse.ArgumentParser, sliced: bool) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")
    parser.add_argument("--out", type=Path, required=True, help="the file: .png, .svg, .pdf or .html")
    parser.add_argument(
        "--features",
        nargs="+",
        default=[],
        metavar="NAME",
        help="pole_angle, or observation[2]; for slices one or two (default: the first two)",
    )
    if sliced:
        parser.add_argument(
            "--fixed", nargs="+", default=[], metavar="NAME=VALUE", help="values of features that do not vary"
        )
        parser.add_argument(
            "--others",
            default="typical",
            help="the other features: those of a typical visited state (typical, default), or averages over sampled"
            " ones (sampled)",
        )
    parser.add_argument("--episodes", type=int, default=10, help="episodes to visit states in (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start states (default: 0)")
    _add_choice(parser)


def _add_ladder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")
    parser.add_argument(
        "--games", type=int, default=100, help="games of each match, half from each seat (default: 100)"
    )
    parser.add_argument("--openings", type=int, default=2, help="random moves at the start of each game (default: 2)")
    parser.add_argument(
        "--neighbours",
        type=int,
        metavar="N",
        help="play against the N checkpoints before and the first one (default: against all, K (K - 1) / 2 matches)",
    )
    parser.add_argument(
        "--members", action="store_true", help="let the members of a population play each other, not checkpoints"
    )
    parser.add_argument("--which", help="of members: last (default), best, or the environment steps of a checkpoint")
    parser.add_argument("--member", default="best", help="of checkpoints: best (default), or a number")
    parser.add_argument("--seed", type=int, default=0, help="seed of the games (default: 0)")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--which", default="best", help="best, last, or the environment steps of a kept checkpoint")
    parser.add_argument("--member", default="best", help="member of a population: best, or a number")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def _runs(args: argparse.Namespace) -> str:
    from stoix_like.cli.listings import run_lines

    return "\n".join(run_lines(args.runs))


def _compare(args: argparse.Namespace) -> str:
    from stoix_like import analysis

    settings = analysis.Settings(args.score, args.test, args.level, args.correction, args.target)
    settings.check()
    return "\n\n".join(map(str, analysis.compare_all(args.runs, settings, args.by)))


def _plot(args: argparse.Namespace) -> str:
    from stoix_like import analysis
    from stoix_like.analysis import figures
    from stoix_like.errors import ConfigError, nearest

    figures.check_output(args.out)
    if args.kind not in figures.KINDS:
        raise ConfigError(f"--kind {args.kind} is unknown: {nearest(args.kind, figures.KINDS)}")
    options = {name: getattr(args, name) for name in ("metric", "x", "center", "band", "test")}
    given = {name: value for name, value in options.items() if value is not None}
    applicable = {"curves": set(options), "efficiency": {"metric"}}.get(args.kind, set())
    if unusable := set(given) - applicable:
        raise ConfigError(f"--{min(unusable)} does not apply to --kind {args.kind}: leave it out")
    figure = figures.draw(analysis.read(args.runs, args.by), args.kind, hyperparams=args.hyperparam, **given)
    figures.save(figure, args.out)
    return f"drawn to {args.out}"


def _picture(args: argparse.Namespace) -> str:
    from stoix_like import analysis
    from stoix_like.analysis import figures

    figures.check_output(args.out)
    sliced = {} if args.command == "plot-trajectory" else {"fixed": _numbers(args.fixed), "others": args.others}
    draw = {
        "plot-policy": analysis.draw_policy,
        "plot-critic": analysis.draw_critic,
        "plot-trajectory": analysis.draw_trajectory,
    }[args.command]
    policy = _load_policy(args)
    try:
        figure = draw(policy, args.features, visits=policy.play(args.episodes, args.seed), **sliced)
    finally:
        policy.close()
    figures.save(figure, args.out)
    return f"drawn to {args.out}"


def _search(args: argparse.Namespace) -> str:
    from stoix_like.analysis import figures
    from stoix_like.analysis.searches import draw_search
    from stoix_like.inference.searches import search_episode

    figures.check_output(args.out)
    if args.trust:
        make_importable()
    options = {"seed": args.seed, "simulations": args.simulations, "trust": args.trust}
    episode = search_episode(args.run_dir, args.which, args.member, **options)
    figures.save(draw_search(episode, args.step), args.out)
    return f"drawn to {args.out}"


def _memory(args: argparse.Namespace) -> str:
    from stoix_like.analysis import figures
    from stoix_like.analysis.groups import SCORES
    from stoix_like.analysis.memory import draw_memory
    from stoix_like.errors import ConfigError, nearest

    figures.check_output(args.out)
    if args.score not in SCORES:
        raise ConfigError(f"--score {args.score} is unknown: {nearest(args.score, SCORES)}")
    figures.save(draw_memory(args.runs, args.x, args.score, args.by), args.out)
    return f"drawn to {args.out}"


def _dream(args: argparse.Namespace) -> str:
    from stoix_like.analysis import figures
    from stoix_like.analysis.dreams import draw_dream
    from stoix_like.inference.dreams import dream_episode
    from stoix_like.rendering.animation import FORMATS, check_writer
    from stoix_like.rendering.dream_drawing import write_dream

    ending = args.out.suffix[1:]
    figures.check_output(args.out, (*figures.SUFFIXES, *(f".{name}" for name in FORMATS)))
    if ending in FORMATS:
        check_writer(ending, f"--out {args.out}")
    if args.trust:
        make_importable()
    options = {"context": args.context, "length": args.length, "seed": args.seed, "trust": args.trust}
    episode = dream_episode(args.run_dir, args.which, args.member, **options)
    if ending in FORMATS:
        write_dream(args.out, episode)
    else:
        figures.save(draw_dream(episode), args.out)
    return f"drawn to {args.out}"


def _load_policy(args: argparse.Namespace, greedy: bool | None = None) -> Policy:
    from stoix_like.inference.load import load_policy

    if args.trust:
        make_importable()
    return load_policy(args.run_dir, args.which, args.member, greedy, trust=args.trust)


def _numbers(given: Sequence[str]) -> dict[str, float]:
    """Parse `name=value`."""
    from stoix_like.errors import ConfigError

    found = {}
    for word in given:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"--fixed {word}: use name=number, such as pole_angle=0.1") from None
    return found


def _ladder(args: argparse.Namespace) -> str:
    from stoix_like.inference import ladder

    if args.trust:
        make_importable()
    names = ("openings", "neighbours", "members", "which", "member", "seed", "trust")
    return ladder.describe(ladder.ladder(args.run_dir, args.games, **{name: getattr(args, name) for name in names}))


def _report(args: argparse.Namespace) -> str:
    from stoix_like.analysis import report

    report.write(args.runs, args.out, by=args.by, animation=not args.no_animation)
    return f"written to {args.out}"


def _export(args: argparse.Namespace) -> str:
    from stoix_like.policies.export import choose_format

    # A wrong ending is reported before anything is loaded.
    format = choose_format(args.out, args.format)
    policy = _load_policy(args, args.greedy)
    try:
        policy.export(args.out, format)
    finally:
        policy.close()
    return f"{policy}\nwritten to {args.out} and {args.out}.json"


def _push(args: argparse.Namespace) -> str:
    from stoix_like.inference import hub

    return f"pushed to {hub.push(args.run_dir, args.repo, private=args.private)}"


def _sweep(args: argparse.Namespace) -> str:
    from stoix_like import tuning

    make_importable()
    return tuning.describe(tuning.from_command_line(args.overrides))


def _tune(args: argparse.Namespace) -> str:
    from stoix_like import tuning
    from stoix_like.composition import parse_overrides
    from stoix_like.tuning.results import plain

    make_importable()
    space = None if args.space is None else plain(parse_overrides([f"space={args.space}"])[0].value())
    result = tuning.tune(
        args.env, args.system, args.budget, args.overrides, space=space, slots=args.slots, directory=args.out
    )
    return tuning.describe_tuned(result)


def _fetch(args: argparse.Namespace) -> str:
    from stoix_like.cli.fetch import fetch

    return fetch(args.data, args.out, args.url)
