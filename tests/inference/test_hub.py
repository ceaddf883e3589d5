import json
import os
import subprocess
import sys

import pytest
import yaml

from stoix_like.errors import ConfigError
from stoix_like.inference import hub
from support import fake_hub
from support.recorded import write_config
from support.trained_runs import train_pendulum

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


def metadata(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_card_states_the_return_with_its_interval():
    (entry,) = metadata(hub.card(SUMMARY, "me/policy"))["model-index"]
    (result,) = entry["results"]
    assert result["dataset"]["type"] == "gymnax/CartPole-v1"
    assert result["metrics"][0]["value"] == "1.50 [1.00, 2.00]"


def test_card_of_one_agent_states_the_absolute_metric():
    absolute = {"absolute/episode_return_mean": 9.0, "absolute/episode_return_std": 0.5}
    card = metadata(hub.card({**SUMMARY, "eval/episode_return_mean": 1.0, **absolute}, "me/policy"))
    text = hub.card(SUMMARY, "me/policy", "gradient steps")
    assert "- gradient steps: 1,000\n" in text
    assert card["library_name"] == "stoix_like"
    assert card["model-index"][0]["results"][0]["metrics"][0]["value"] == "9.00 +/- 0.50"


@pytest.mark.parametrize(("arch", "kept"), [({}, "best"), ({"architecture_name": "offline"}, "last")])
def test_card_names_the_parameters_of_the_absolute_metric(tmp_path, arch, kept):
    write_config(tmp_path, {**CONFIG, "arch": arch})
    absolute = {"absolute/episode_return_mean": 9.0, "absolute/episode_return_std": 0.5}
    text, _ = hub._written_of({**SUMMARY, **absolute}, "me/policy", tmp_path)
    assert f"(mean and standard deviation over episodes, {kept} parameters)" in text


def test_card_of_a_run_without_a_finite_return_says_so():
    absolute = {"absolute/episode_return_mean": None, "absolute/episode_return_std": None}
    card = metadata(hub.card({**SUMMARY, "eval/episode_return_mean": None, **absolute}, "me/policy"))
    assert card["model-index"][0]["results"][0]["metrics"][0]["value"] == "nan +/- nan"


@pytest.mark.parametrize("address", ["hf://policy", "hf://me/policy/more", "hf://me/pol icy"])
def test_other_addresses_are_refused(address):
    with pytest.raises(ConfigError, match="is not an address of a run: use hf://owner/name"):
        hub.local_run(address)


def test_push_refuses_what_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        hub.push(tmp_path, "me/policy")


@pytest.mark.parametrize("summary", [{}, {**SUMMARY, "env_steps": None}, {**SUMMARY, "versions": 3}, []])
def test_push_refuses_an_odd_summary_before_it_creates_a_repository(tmp_path, monkeypatch, summary):
    write_config(tmp_path, CONFIG)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr(hub.checkpoint, "steps", lambda directory: [1])
    with pytest.raises(ConfigError, match="summary.json cannot be read.*: push a run that is complete"):
        hub.push(tmp_path, "me/policy")


def test_push_refuses_a_policy_of_before_the_results(tmp_path, monkeypatch):
    write_config(tmp_path, CONFIG)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    monkeypatch.setattr(hub.checkpoint, "steps", lambda directory: [400, 600])
    with pytest.raises(ConfigError, match="newest checkpoint is of 600 steps, its results are of 1,000: write one"):
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
    with pytest.raises(ConfigError, match="is a symbolic link|neither a regular file nor a directory"):
        hub.push(run_dir, "me/policy")


@pytest.mark.slow
def test_push_replaces_the_files_of_another_run(tmp_path, monkeypatch):
    """Its description of the environments would be read as that of the new run; what the owner added stays."""
    (tmp_path / "checkpoints/1000/best").mkdir(parents=True)
    (tmp_path / "checkpoints/1000/best/file").write_text("new")
    write_config(tmp_path, CONFIG)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    monkeypatch.setattr(hub.checkpoint, "check_files", lambda directory, step: None)
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
def test_a_pushed_run_is_evaluated_from_the_hub(tmp_path, tmp_path_factory):
    """The evaluation of the download is that of the run; code that its configuration names is not executed."""
    run_dir, files, private = train_pendulum(tmp_path_factory), {}, []
    with fake_hub.serve(files, private) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path)}
        pushed = command("push", run_dir, "me/policy", "--private", **environment)
        assert private == [True]
        assert (pushed.returncode, pushed.stdout) == (0, f"pushed to {endpoint}/me/policy\n"), pushed.stderr
        assert "README.md" in files
        assert not any("rollout_state" in name for name in files)
        options = ["--episodes", "3", "--which", "last"]
        local = command("evaluate", run_dir, *options, **environment)
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
def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path_factory):
    """Nothing listens on port 9."""
    unreachable = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    run_dir = train_pendulum(tmp_path_factory)
    for arguments, what in ((("push", run_dir, "me/policy"), "upload"), (("evaluate", "hf://me/policy"), "download")):
        refused = command(*arguments, **unreachable)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert f"the {what} failed: ConnectError" in refused.stderr
