import ast
import functools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path

import griffe
import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import get_files
from mkdocs_gen_files.editor import FilesEditor
from omegaconf import OmegaConf

import stoix_like
from stoix_like.cli.listings import lines
from stoix_like.composition import compose_config, group_choices
from stoix_like.config import parse_config
from stoix_like.envs.suites import SUITES
from stoix_like.errors import ConfigError
from stoix_like.run.set_up.setup import set_up

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for path in (ROOT / "stoix_like").rglob("*.py")
    if not any(part.startswith("_") for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")
)
GUIDE = {path.stem: path for path in (ROOT / "docs/guides").glob("*.md")}
OWN_SYSTEM, TRAINED_POLICY = GUIDE["write_your_own_system"], GUIDE["use_a_trained_policy"]
OWN_ENVIRONMENT, GAME, MJX = GUIDE["bring_your_own_environment"], GUIDE["game"], GUIDE["mjx"]
WHICH, SELF_PLAY = GUIDE["which_algorithm"], GUIDE["self_play"]
RUNNING = "command_line coming_from_sb3 import_the_parts compare_runs callbacks log_a_run sweep gymnasium_mujoco_atari"
GUIDES = [
    *(GUIDE[name] for name in [*RUNNING.split(), "learn_from_data"]),
    *(TRAINED_POLICY, OWN_SYSTEM, OWN_ENVIRONMENT, SELF_PLAY),
]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *GUIDES]
ALGORITHMS = sorted((ROOT / "docs/algorithms").glob("*.md"))
LINKING = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "ROADMAP", "AGENTS")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def public_symbols(body, prefix=""):
    """Yield the names of public functions, classes and methods, from the source, but not overrides."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # `__call__` documents a flax module; other magic methods are not listed.
            if node.name.startswith("_") and node.name != "__call__":
                continue
            if ast.get_docstring(node):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from public_symbols(node.body, f"{prefix}{node.name}.")


def generate(directory, script="gen_reference.py"):
    """Write the generated pages into a directory, and return what the script defines."""
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(ROOT / "docs"))
    with FilesEditor(get_files(config), config, str(directory)):
        return runpy.run_path(str(ROOT / "docs" / script))


def directives(site):
    """Map each documented module to its page below `reference/`."""
    pages = sorted((site / "reference").rglob("*.md"))
    return {
        name: page.relative_to(site / "reference").as_posix()
        for page in pages
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }


def linked(text):
    """Return the targets of relative links, without anchors."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [path for path in (target.partition("#")[0] for target in targets if "://" not in target) if path]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Generate the pages that are not in `docs`, and return their directory."""
    directory = tmp_path_factory.mktemp("site")
    generate(directory)
    return directory


# Pages show real budgets; tests use small ones.
SMALL_BUDGETS = {
    '"arch.total_timesteps=5e5"': '"arch.total_timesteps=8192"',
    '"arch.total_timesteps=2e5"],': '"arch.total_timesteps=16384", "arch.max_eval_steps=50"],',
    '"arch.seed=1"]': '"arch.seed=1", "arch.total_timesteps=8192", "arch.max_eval_steps=50"]',
    '"arch.total_timesteps=6e5"': '"arch.total_timesteps=16384"',
    '"arch.total_timesteps=2e5"': '"arch.total_timesteps=8192", "arch.max_eval_steps=50"',
}


def blocks(page, language):
    """Return the title and the code of each fenced block of a page."""
    fence = rf'^```{language}(?: title="([^"]+)")?\n(.*?)^```$'
    return re.findall(fence, page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Change to a directory with the files of the guides."""
    files = [
        block
        for page in (OWN_SYSTEM, OWN_ENVIRONMENT, TRAINED_POLICY, SELF_PLAY, GAME, MJX)
        for name in ("python", "yaml")
        for block in blocks(page, name)
    ]
    for title, text in files:
        if title:
            path = tmp_path / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_every_public_module_has_a_page_in_the_navigation(site):
    pages = directives(site)
    assert sorted(pages) == sorted(map(module_name, SOURCES))
    assert {*pages.values()} <= {*linked((site / "reference/SUMMARY.txt").read_text())}


def test_the_reference_documents_every_stable_name():
    """Names without a docstring that griffe reads or `docs/assigned.py` adds are left out of the reference."""
    options = load_config(str(ROOT / "mkdocs.yml")).plugins["mkdocstrings"].config.handlers["python"]["options"]
    extensions = griffe.load_extensions(*(str(ROOT / path) for path in options["extensions"]))
    sources = {module_name(path): path for path in SOURCES}

    @functools.cache
    def module(name):
        return griffe.visit(name, sources[name], sources[name].read_text(), extensions=extensions)

    def member(path):
        parent, _, name = path.rpartition(".")
        found = module(parent)[name]
        return member(found.target_path) if found.is_alias else found

    names = re.findall(r"^[\w.]+", (ROOT / "tests/stable_names.txt").read_text(), re.MULTILINE)
    assert [name for name in names if not member(f"stoix_like.{name}").has_docstring] == []
    loss, losses = (member(f"stoix_like.utils.loss.q_learning{suffix}") for suffix in ("", "_per_example"))
    assert loss.parameters == losses.parameters
    assert member("stoix_like.systems.sac.anakin.ff_sac.run_experiment").has_docstring


def test_every_config_is_shown_verbatim(site):
    sources = sorted((ROOT / "configs").rglob("*.yaml"))
    texts = "".join(page.read_text() for page in (site / "configuration").rglob("*.md"))
    assert sources
    assert [path for path in sources if f"```yaml\n{path.read_text().strip()}\n```" not in texts] == []


def test_every_system_is_in_the_table_of_one_family(tmp_path):
    script = generate(tmp_path, "gen_algorithms.py")
    texts = {page: (tmp_path / f"algorithms/{page}.md").read_text() for page in script["PAGES"]}
    assert sorted(texts) == [page.stem for page in ALGORITHMS]
    tables = [text.partition("\n## Results\n")[0] for text in texts.values()]
    rows = [row for text in tables for row in re.findall(r"^\| `.*\|$", text, re.MULTILINE)]
    listed = [line.removeprefix("system=") for line in lines("systems") if line.startswith("system=")]
    assert sorted(re.search(r"`(.*?)`", row).group(1) for row in rows) == sorted(listed)
    # Discrete, MultiDiscrete, Box, mixed, recurrent, masks, dictionaries, populations.
    assert "| `ppo/rec_ppo` | ✓ | ✓ | ✓ | ✓ | ✓ | ✓ | ✓ | ✓ |" in rows
    assert "| `sac/ff_sac` | – | – | ✓ | – | – | – | ✓ | ✓ |" in rows


def test_results_are_shown_by_environment_and_counted(tmp_path):
    script = generate(tmp_path, "gen_results.py")
    text = (tmp_path / "results.md").read_text()
    counts = re.search(r"Of (\d+) .*\*\*(\d+) are reached, (\d+) lie within .*, and (\d+) are lower", text).groups()
    total, reached, within, lower = map(int, counts)
    verdicts = [script["verdict"](row) for entry in script["read_entries"]()[0] for row in entry.compared]
    assert (total, reached) == (len(verdicts), sum(verdict.startswith("reached ") for verdict in verdicts))
    assert total == reached + within + lower
    images = set(re.findall(r"!\[Final returns on .*\]\((.*)\)", text))
    assert images == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.svg")}
    shown = text.partition("## What the numbers are")[0]
    block = (ROOT / "docs/results.md").read_text().partition("All rows:")[2].partition("results:end")[0]
    assert len(re.findall(r"^    stoix-like train", shown, re.MULTILINE)) == block.count("`stoix-like train")


def test_a_picture_of_results_has_a_bar_for_each_row_and_a_diamond_for_each_published_return(tmp_path):
    script = generate(tmp_path, "gen_results.py")
    row = {"system": "`ppo/ff_ppo`", "env steps": "1M", "final policy": "5.0 [0.0, 10.0]"}
    drawn = script["picture"]([script["Entry"](row, [{"published": "10 (paper)"}])])
    # 250 pixels of labels and a margin of 10, then 570 from the lowest number, 0, to the highest, 10.
    assert '<path class="ours" d="M260.0 33.0H830.0"/><circle class="ours" cx="545.0"' in drawn
    assert '<path class="theirs" d="M830.0 27.0l5 6' in drawn


@pytest.mark.parametrize("page", ALGORITHMS, ids=lambda page: page.stem)
def test_the_example_of_a_family_is_the_same_in_python(page):
    *_, command = blocks(page, "sh")[0][1].strip().splitlines()
    ((_, code),) = blocks(page, "python")
    system, *overrides = re.findall(r'"([^"]+)"', code)
    assert command == " ".join(["stoix-like train", f"system={system}", *overrides])
    assert parse_config(compose_config([f"system={system}", *overrides])).system_name == system


def test_the_guide_shows_the_reader_for_numpy_verbatim():
    ((_, text),) = (block for block in blocks(TRAINED_POLICY, "python") if block[0] == "numpy_policy.py")
    assert text == (ROOT / "stoix_like/policies/formats/numpy_policy.py").read_text()


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page):
    """Links work where the code is hosted as well: none leads to a page that is generated for the site."""
    text = page.read_text()
    hosted = re.findall(r"stoix-like/stoix_like/(?:blob/|tree/)?main/([^)#\s]+)", text)
    assert [path for path in linked(text) if not (page.parent / path).exists()] == []
    assert [path for path in hosted if not (ROOT / path).exists()] == []
    scripts = re.findall(r"(?<![\w/])scripts/[\w./-]*\w", text)
    assert [path for path in scripts if not (ROOT / path).exists()] == []


def test_the_guides_list_the_keys_of_other_frameworks():
    """`python scripts/key_tables.py` writes them."""
    tables = runpy.run_path(str(ROOT / "scripts/key_tables.py"))
    for framework, page in tables["PAGES"].items():
        assert tables["updated"](page.read_text(), framework) == page.read_text(), page


def test_the_commands_of_a_page_are_shown_with_their_outputs(tmp_path):
    with_outputs = runpy.run_path(str(ROOT / "docs/executed.py"))["with_outputs"]
    shell = "```sh\npwd && echo red | tee drawn.png\n: --out drawn.png\n```\n"
    page = f"# Title\n\n{shell}\nBetween.\n\n```python\nprint(6 * 7)\n```\n"
    text, pictures = with_outputs(page, tmp_path, "page")
    assert text.count("```text\n") == 2
    assert f"{shell}\n```text\n{tmp_path}\nred\n```\n\n![drawn.png](../images/page-drawn.png)\n" in text
    assert "print(6 * 7)\n```\n\n```text\n42\n```\n" in text
    assert pictures == {"page-drawn.png": b"red\n"}
    with pytest.raises(RuntimeError, match=r"(?s)the block\nfalse\nended with 1"):
        with_outputs("```sh\nfalse\n```\n", tmp_path, "page")


def test_the_table_of_algorithms_composes_and_names_rows_of_the_results():
    results, defaults = ((ROOT / f"docs/{name}.md").read_text().splitlines() for name in ("results", "defaults"))
    lines = [line.strip("| ").split(" | ") for line in WHICH.read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in lines if row[1].startswith("`system=")]
    assert len(rows) > 15
    for _, start, keys, evidence in rows:
        overrides = re.findall(r"`([^`]*)`", start)[0].split()
        config = compose_config(overrides)
        missing = [key for key in re.findall(r"`([^`]*)`", keys) if OmegaConf.select(config, key, default="no") == "no"]
        assert missing == [], overrides
        system = f"| `{overrides[0].removeprefix('system=')}` | "
        for env, steps in re.findall(r"\[([^], ]+), ([^]]+)\]\(../results.md\)", evidence):
            assert any(line.startswith(f"{system}{env} | ") and f" | {steps} | " in line for line in results), env
        assert "defaults.md" not in evidence or any(line.startswith(system) for line in defaults), system


def test_the_settings_that_are_compared_with_papers_are_the_defaults():
    rows = re.findall(r"^\| `(\w+/\w+)`(.*)", (ROOT / "docs/defaults.md").read_text(), re.MULTILINE)
    given = [(system, f"{key}: {value}") for system, row in rows for key, value in re.findall(r"`(\w+)=([^`]+)`", row)]
    assert len(given) > 60
    for system, text in given:
        assert OmegaConf.create(text).items() <= OmegaConf.load(ROOT / f"configs/system/{system}.yaml").items(), system


def trainings(text):
    """Return the overrides of the trainings that a text names; of several values, the first."""
    found = re.findall(r"stoix-like train\b([^`\n|]*)", text.replace("\\\n", " "))
    lines = [re.split(r"\s+#|\s+[|>&]", command.rstrip(" )”.,;:"))[0] for command in found]
    # Shells fill in variables, and readers what is left out.
    commands = [
        shlex.split(line) for line in lines if not re.search(r"[$…]|--config-dir", line) and line.count("'") % 2 == 0
    ]
    for command in commands:
        words = [word for word in command if re.match(r"\+*[\w./@]+=", word)]
        if any(word.startswith(("system=", "env=", "+experiment=")) for word in words):
            several = "-m" in command
            yield [re.sub(r"=(?:range\()?([^\[{,]*),[^\]}]*$", r"=\1", word) if several else word for word in words]


@pytest.mark.slow
@pytest.mark.parametrize("page", LINKING, ids=lambda path: path.name)
def test_every_training_of_a_page_composes(page):
    for overrides in trainings(page.read_text()):
        parse_config(compose_config(overrides))


def test_the_readme_has_no_relative_links():
    """They break on package indexes."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=[\"']([^\"']+)|^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    relative = [
        target for found in targets for target in found if target and not re.match(r"https?://|mailto:|#", target)
    ]
    assert targets
    assert relative == []


def test_the_readme_names_every_system():
    text = (ROOT / "README.md").read_text()
    names = {system: system.partition("/")[2] for system in group_choices("system")}
    assert [system for system, name in names.items() if f"`{name}`" not in text and f"`{system}`" not in text] == []


def test_the_readme_counts_systems_and_suites():
    tens = {"forty": 40, "fifty": 50, "sixty": 60}
    suites = {"fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19}
    text = " ".join((ROOT / "README.md").read_text().split())
    more_than, number = re.search(r"More than (\w+) algorithms and (\w+) environment suites", text).groups()
    found = len([path for path in (ROOT / "configs/system").glob("*/*.yaml") if not path.stem.startswith("_")])
    assert tens[more_than] < found <= tens[more_than] + 10
    assert suites[number] == len(SUITES.keys() - {"probe"})


def test_every_link_of_a_generated_page_leads_to_a_page(site):
    pages = [*site.rglob("*.md"), *site.rglob("SUMMARY.txt")]
    broken = [(page, path) for page in pages for path in linked(page.read_text()) if not (page.parent / path).exists()]
    assert pages
    assert broken == []


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_lists_every_public_symbol(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    texts = {path: (tmp_path / path).read_text() for path in linked((tmp_path / "llms.txt").read_text())}
    assert "guides/populations.md" in texts
    assert texts["guides/tutorial.md"] in (tmp_path / "llms-full.txt").read_text()
    pages = {path for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    assert {path for path in pages if not path.with_suffix(".md").exists()} == set()
    _, _, _, _, entries = (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)
    listed = {line.split(" ", 1)[0] for line in zlib.decompress(entries).decode().splitlines()}
    public = {
        f"{module_name(path)}.{name}" for path in SOURCES for name in public_symbols(ast.parse(path.read_text()).body)
    }
    assert sorted(public - listed) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_runs(page, directory):
    shown = blocks(page, "python")
    assert shown
    namespace = {"__name__": "shown"}
    for _, code in shown:
        for budget, small in SMALL_BUDGETS.items():
            code = code.replace(budget, small)
        exec(compile(code, page.name, "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("page", ALGORITHMS, ids=lambda page: page.stem)
def test_the_example_of_a_family_trains(page, directory, monkeypatch):
    ((_, code),) = blocks(page, "python")
    if "disco" in code:
        pytest.skip("its weights are downloaded")
    train, steps = stoix_like.train, 1024 if "dreamer" in code else 4096
    if "data.npz" in code:
        played = train("ppo/ff_ppo", ["env=gymnax/pendulum", "arch.total_timesteps=4096", "arch.num_evaluation=1"])
        stoix_like.collect(played.run_dir, steps=400, policy="random", out="data.npz")

    def train_briefly(system, overrides):
        others = [override for override in overrides if not override.startswith("arch.total_timesteps")]
        small = [f"arch.total_timesteps={steps}", "arch.num_evaluation=1", "arch.max_eval_steps=50"]
        return train(system, [*others, *small])

    monkeypatch.setattr(stoix_like, "train", train_briefly)
    exec(compile(code, page.name, "exec"), {"__name__": "shown"})


def shell(commands, answers=None):
    """Return what commands print, after they have succeeded with the programs of this Python."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-ec", commands], env=environment, input=answers, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_system_of_the_guide_learns_from_the_shell(directory):
    ((_, command),) = blocks(OWN_SYSTEM, "sh")
    shell(command)
    (run,) = (directory / "runs").glob("mine/action/*")
    assert json.loads((run / "summary.json").read_text())["eval/episode_return_mean"] == 1.0
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["train/episode_return_mean"] > 0.9


@pytest.mark.slow
def test_the_environment_of_the_guide_is_checked_and_trained_from_the_shell(directory):
    commands = [command.replace("2e5", "8192") for _, command in blocks(OWN_ENVIRONMENT, "sh")]
    commands.append("stoix-like train --config-dir conf env=my_grid arch.total_timesteps=8192")
    assert [shell(command).count("no faults in 3 environments") for command in commands] == [1, 0, 1, 1, 0]
    assert len(list((directory / "runs/ppo/ff_ppo/my_grid.Grid").iterdir())) == 2


def test_the_rules_of_the_game_of_the_guide(directory):
    (code,) = (text for title, text in blocks(GAME, "python") if not title)
    exec(compile(code, GAME.name, "exec"), {"__name__": "shown"})


@pytest.mark.slow
def test_the_game_of_the_guide_is_checked_trained_and_played_from_the_shell(directory):
    moves = "".join(f"{row} {column}\n" for row in range(5) for column in range(4)) * 8
    commands = "".join(text for _, text in blocks(GAME, "sh"))
    small = {"1e5": "1536", "--episodes 1000": "--episodes 10", "--neighbours 2": "--neighbours 2 --games 4"}
    for shown, used in small.items():
        assert shown in commands
        commands = commands.replace(shown, used)
    printed = shell(commands, moves)
    assert printed.count("no faults in 3 environments") == 2
    assert "you win" in printed or "you lose" in printed
    assert (directory / "game.gif").exists()


@pytest.mark.slow
def test_the_robot_of_the_guide_is_checked_trained_rendered_and_exported(directory):
    """In a process of its own: mjx broadcasts arrays of different ranks."""
    code = "".join(text for title, text in blocks(MJX, "python") if not title)
    for budget, small in SMALL_BUDGETS.items():
        code = code.replace(budget, small)
    (directory / "shown.py").write_text(code)
    commands = "".join(text for _, text in blocks(MJX, "sh")).replace("1e5", "4096")
    printed = shell(f"export JAX_DISABLE_MOST_OPTIMIZATIONS=0\nexec 2>&1\npython shown.py\n{commands}")
    assert printed.count("no faults in 3 environments × 80 random steps (3 episodes)") == 2
    assert "Using JAX default device" not in printed
    assert (directory / "puck.stablehlo").exists()
    assert (directory / "puck.gif").exists()


def test_the_networks_of_the_guide_are_checked_by_name(directory):
    ((_, default),) = (block for block in blocks(OWN_SYSTEM, "yaml") if not block[0])
    config = directory / "conf/system/mine.yaml"
    overrides = ["system=mine", "env=gymnax/cartpole", "logger=silent"]
    with pytest.raises(ConfigError) as refused:
        set_up(parse_config(compose_config([*overrides, "network=mlp_dqn"], [directory / "conf"])))
    assert f"`{refused.value}`" in " ".join(OWN_SYSTEM.read_text().split())
    config.write_text(default + config.read_text())
    composed = compose_config(overrides, [directory / "conf"])
    assert composed.network == compose_config(["network=mlp_swish"]).network
    set_up(parse_config(composed))


def test_the_preset_of_the_guide_changes_the_keys_it_names(directory):
    names = ("ppo/ff_ppo", "careful_ppo")
    packaged, preset = (parse_config(compose_config([f"system={name}"], [directory / "conf"])) for name in names)
    assert preset.system_name == "careful_ppo"
    assert preset.build is packaged.build
    assert (preset.system.clip_eps, preset.system.minibatches.epochs) == (0.1, 2)
    assert preset.system.gamma == packaged.system.gamma


def section(text, title):
    """Return the text of a section of the second level."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def test_the_readme_lists_every_extra():
    """In its commands, and in the tables of extras and of suites."""
    text, project = (ROOT / "README.md").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = section(text, "Install")
    first, others = re.search(r"'\.\[([\w-]+)\]' +# or ([\w, -]+):", install).groups()
    extras = " ".join(re.findall(r"^\| (`[^|]*) \|", install, re.MULTILINE))
    cells = re.findall(r"^\| ([^|]*) \|", section(text, "Environments"), re.MULTILINE)
    suites = " ".join(cell for cell in cells if "in the core" not in cell)
    listed = {first, *others.split(", "), *re.findall(r"`([\w-]+)`", extras + suites)}
    assert listed == set(project["optional-dependencies"])


def test_the_site_has_the_extras_of_the_page_that_it_executes():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (install,) = re.findall(r"pip install '\.\[(.*)\]'", (ROOT / "docs/guides/afternoon.md").read_text())
    ours = re.search(r"stoix_like\[(.*)\]", " ".join(extras["docs"]))[1]
    assert set(install.split(",")) <= set(ours.split(","))
