import json
import os
import subprocess
import sys

import pytest
import yaml

from stoix_like.errors import ConfigError
from stoix_like.lab import hub
from stoix_like.policies.hub import local_run
from support import fake_hub
from support.recorded import write_config

SUMMARY = {
    "system": "ppo/ff_ppo",
    "environment": "gymnax/CartPole-v1",
    "env_steps": 1000,
    "eval/episode_return_mean": [1.0, 2.0],
    "eval/episode_return_iqm": 1.5,
    "eval/episode_return_ci_low": 1.0,
    "eval/episode_return_ci_high": 2.0,
    "versions": {"jax": "0.10"},
}
CONFIG = {group: {} for group in ("system", "env", "network", "arch", "checkpoint", "logger")}


ABSOLUTE = {"absolute/episode_return_mean": 9.0, "absolute/episode_return_std": 0.5}
NOTHING = dict.fromkeys((*ABSOLUTE, "eval/episode_return_mean"))


def metadata(card):
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize(
    ("results", "value"),
    [
        # That of several agents with its interval, and that of one as the absolute metric.
        ({}, "1.50 [1.00, 2.00]"),
        ({"eval/episode_return_mean": 1.0, **ABSOLUTE}, "9.00 +/- 0.50"),
        (NOTHING, "nan +/- nan"),
    ],
)
def test_a_card_states_the_return(results, value):
    text = hub.card({**SUMMARY, **results}, "me/policy", "gradient steps")
    assert "- gradient steps: 1,000\n" in text
    card = metadata(text)
    (result,) = card["model-index"][0]["results"]
    assert (card["library_name"], result["dataset"]["type"]) == ("stoix_like", "gymnax/CartPole-v1")
    assert result["metrics"][0]["value"] == value


@pytest.mark.parametrize(("arch", "kept"), [({}, "best"), ({"architecture_name": "offline"}, "last")])
def test_card_names_the_parameters_of_the_absolute_metric(tmp_path, arch, kept):
    write_config(tmp_path, {**CONFIG, "arch": arch})
    text, _ = hub._written_of({**SUMMARY, **ABSOLUTE}, "me/policy", tmp_path)
    assert f"(mean and standard deviation over episodes, {kept} parameters)" in text


@pytest.mark.parametrize("address", ["hf://policy", "hf://me/policy/more", "hf://me/pol icy"])
def test_other_addresses_are_refused(address):
    with pytest.raises(ConfigError, match="is not an address of a run: use hf://owner/name"):
        local_run(address)


ODD = "summary.json cannot be read.*: push a run that is complete"


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        ({}, ODD),
        ({**SUMMARY, "env_steps": None}, ODD),
        ({**SUMMARY, "versions": 3}, ODD),
        ([], ODD),
        (SUMMARY, "newest checkpoint is of 600 steps, its results are of 1,000: write one"),
    ],
)
def test_push_refuses_an_odd_summary_and_another_policys_at_once(tmp_path, monkeypatch, summary, message):
    with pytest.raises(ConfigError, match="holds no run"):
        hub.push(tmp_path, "me/policy")
    write_config(tmp_path, CONFIG)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr(hub.checkpoint, "steps", lambda directory: [400, 600])
    with pytest.raises(ConfigError, match=message):
        hub.push(tmp_path, "me/policy")


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/1000/best/file"])
def test_push_refuses_links_which_the_client_would_follow(tmp_path, monkeypatch, name):
    run_dir, secret = tmp_path / "run", tmp_path / "secret"
    (run_dir / "checkpoints/1000/best").mkdir(parents=True)
    write_config(run_dir, CONFIG)
    (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
    secret.write_text("secret")
    (run_dir / name).symlink_to(secret)
    monkeypatch.setattr(hub.checkpoint, "steps", lambda directory: [1000])
    with pytest.raises(ConfigError, match=f"{name} is a symbolic link"):
        hub.push(run_dir, "me/policy")


@pytest.mark.slow
def test_push_replaces_the_files_of_another_run(tmp_path, monkeypatch):
    """Its description of the environments would be read as that of the new run; what the owner added stays."""
    (tmp_path / "checkpoints/1000/best").mkdir(parents=True)
    (tmp_path / "checkpoints/1000/best/file").write_text("new")
    write_config(tmp_path, CONFIG)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    old = ["environment.json", "metrics.jsonl", "checkpoints/500/best/file", "config.yaml", "notes.md"]
    files = dict.fromkeys(old, b"old")
    with fake_hub.serve(files) as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        hub.push(tmp_path, "me/policy")
    assert files.keys() == {"README.md", "config.yaml", "summary.json", "checkpoints/1000/best/file", "notes.md"}
    assert files["config.yaml"] == (tmp_path / "config.yaml").read_bytes()


def command(*arguments, **environment):
    own = {**os.environ, "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    program = [sys.executable, "-m", "stoix_like", *map(str, arguments)]
    return subprocess.run(program, env=own, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_pushed_run_is_evaluated_from_the_hub(tmp_path, pendulum):
    """The evaluation of the download is that of the run; code that its configuration names is not executed."""
    files, private = {}, []
    with fake_hub.serve(files, private) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path)}
        pushed = command("push", pendulum, "me/policy", "--private", **environment)
        assert private == [True]
        assert (pushed.returncode, pushed.stdout) == (0, f"pushed to {endpoint}/me/policy\n"), pushed.stderr
        assert "README.md" in files
        assert not any("rollout_state" in name for name in files)
        options = ["--episodes", "3", "--which", "last"]
        local = command("evaluate", pendulum, *options, **environment)
        remote = command("evaluate", "hf://me/policy", *options, **environment)
        assert remote.returncode == 0, remote.stderr
        assert remote.stdout.splitlines()[:-1] == local.stdout.splitlines()[:-1]
        files["config.yaml"] = files["config.yaml"].replace(b"stoix_like.networks.torso.MLPTorso", b"os.system")
        refused = command("evaluate", "hf://me/policy", **environment)
        assert refused.returncode == 2
        assert "_target_=os.system is executed when the run is loaded" in refused.stderr
        unknown = command("evaluate", "hf://me/other", **environment)
        assert unknown.returncode == 2
        assert "run_dir=hf://me/other: the download failed" in unknown.stderr
    assert metadata(files["README.md"].decode())["tags"][3] == "ppo/ff_ppo"
    assert json.loads(files["summary.json"])["system"] == "ppo/ff_ppo"


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_line(pendulum):
    """Nothing listens on port 9."""
    unreachable = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    for arguments, what in ((("push", pendulum, "me/policy"), "upload"), (("evaluate", "hf://me/policy"), "download")):
        refused = command(*arguments, **unreachable)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert f"the {what} failed: ConnectError" in refused.stderr
