import functools
import re
import signal
import sys
from types import SimpleNamespace

import flax.linen as nn
import pytest

import stoix_like
from stoix_like import callbacks
from stoix_like.config import import_build
from stoix_like.envs import Discrete, find_opponent
from stoix_like.envs.factory import EnvConfig, make
from stoix_like.errors import CallbackError, ConfigError
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.signals import Signals
from stoix_like.user_code import guarded, import_object, name_of, refusing
from support import custom_envs
from support.set_ups import config_of, setup_of
from support.trained_runs import SMALL

MODULES = {
    "raises": "raise LookupError('the file of the map is missing')",
    "leaves": "import sys\nsys.exit()",
    "unreadable": "def broken(:\n",
}


@pytest.fixture(params=MODULES)
def module(request, tmp_path, monkeypatch):
    name = f"user_{request.param}"
    (tmp_path / f"{name}.py").write_text(MODULES[request.param])
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "is not an import path"),
        ("", "is not an import path"),
        ("Env", "is not an import path"),
        ("absent.Env", "cannot be imported (No module named 'absent'"),
        (None, "is not an import path"),
    ],
)
def test_paths_that_name_nothing(path, reason):
    with pytest.raises(ConfigError) as refused:
        import_object(path, "env._target_", "use a class")
    assert str(refused.value).startswith(f"env._target_={path} {reason}")
    assert str(refused.value).endswith(": use a class")


def test_every_import_by_path_is_guarded(module):
    path = f"{module}.thing"
    imports = {
        f"env._target_={path} cannot be imported": lambda: make(EnvConfig("own", _target_=path)),
        f"system.module={path} is not a system": lambda: import_build(path),
        f"function={path} cannot be imported": lambda: callbacks.EvaluatePolicy(path),
        f"network.a._target_={path} cannot be imported": lambda: build_networks({"a": {"_target_": path}}, Discrete(2)),
        f"env.scenario.name='{module}:X-v0': the module {module} cannot": lambda: make(
            config_of("env=gymnasium", f"env.scenario.name={module}:X-v0").env
        ),
    }
    for problem, attempt in imports.items():
        with pytest.raises(ConfigError) as refused:
            attempt()
        assert str(refused.value).startswith(problem)
        assert any(reason in str(refused.value) for reason in ("LookupError: the file", "SystemExit", "SyntaxError"))


def test_guarded_functions_pass_on_what_they_return_and_refusals_of_their_own():
    function = guarded(lambda *numbers: sum(numbers), "key", "f", "(a, b) -> c", lambda result: None)
    assert function(1, 2) == 3
    with pytest.raises(ConfigError, match="^mine$"), refusing("problem", "advice"):
        raise ConfigError("mine")
    with pytest.raises(KeyboardInterrupt), refusing("problem", "advice"):
        raise KeyboardInterrupt


class Player:
    def __call__(self, key, game):
        return 0.5


def nested():
    def player(key, game):
        return 0.5

    return player


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("random", "random"),
        (nested, "test_user_code.nested"),
        (functools.partial(nested), "test_user_code.nested"),
        (Player(), "test_user_code.Player"),
        (custom_envs.Corridor, "support.custom_envs.Corridor"),
        (nested(), rf"player \(.*test_user_code.py:{nested.__code__.co_firstlineno + 1}\)"),
        (lambda key: key, r"<lambda> \(.*test_user_code.py:\d+\)"),
    ],
)
def test_functions_are_named_by_import_path_or_place(value, name):
    own = guarded(value, "key", value, "(key) -> c", lambda result: None) if callable(value) else value
    for named in (value, own):
        assert re.fullmatch(f"(tests[.])?{name}", str(name_of(named)))


def test_functions_in_messages_are_those_of_the_user():
    opponent = nested()
    with pytest.raises(ConfigError, match=r"^env.eval_opponent=player \(.*test_user_code.py:\d+\) returns float32"):
        find_opponent(opponent, lambda key: key, opponent)
    callback = callbacks.EvaluatePolicy(nested)
    with pytest.raises(CallbackError, match=r"^EvaluatePolicy\(function=.*test_user_code.nested\): TypeError: nested"):
        callback.on_evaluation({}, None)


def test_a_signal_while_code_of_users_runs_is_no_fault_of_it():
    def stop():
        signal.raise_signal(signal.SIGTERM)
        sys.exit(143)

    with pytest.raises(SystemExit), Signals(), refusing("problem", "advice"):
        stop()
    with pytest.raises(ConfigError, match=r"problem \(SystemExit: 0"), Signals(), refusing("problem", "advice"):
        sys.exit(0)


class Torso(nn.Module):
    error: str
    when: str

    def __post_init__(self):
        super().__post_init__()
        self.fail("built")

    def __call__(self, inputs):
        self.fail("called")
        return inputs

    def fail(self, when):
        if when == self.when:
            raise {"exit": SystemExit(0), "key": KeyError("width")}[self.error]


@pytest.mark.parametrize("when", ["built", "called"])
@pytest.mark.parametrize(("error", "message"), [("exit", "SystemExit: 0"), ("key", "KeyError: 'width'")])
def test_networks_that_raise_anything_are_refused(monkeypatch, error, message, when):
    monkeypatch.setitem(sys.modules, "user_torsos", SimpleNamespace(Torso=Torso))
    key = "network.actor_network.pre_torso"
    torso = [f"{key}._target_=user_torsos.Torso", f"+{key}.error={error}", f"+{key}.when={when}"]
    place = "pre_torso=user_torsos.Torso cannot be built: " if when == "built" else "built with this network: "
    with pytest.raises(ConfigError, match=f"{place}{message} .*test_user_code.py:"):
        setup_of("env=probe/policy", *torso)


@pytest.mark.slow
@pytest.mark.parametrize("error", [SystemExit(0), KeyError("lost")])
def test_callbacks_that_raise_anything_end_a_run_that_is_saved(tmp_path, error):
    class Failing(callbacks.Callback):
        def on_evaluation(self, record, policy):
            raise error

    words = [*SMALL, "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=1"]
    with pytest.raises(CallbackError, match=f"Failing: {type(error).__name__}: .*; stopped after 0 env steps, saved"):
        stoix_like.train("ppo/ff_ppo", words, run_dir=tmp_path, callbacks=[Failing()])


def test_constructors_and_methods_that_leave_the_process_are_refused(monkeypatch):
    def leave(*_):
        raise SystemExit(0)

    monkeypatch.setattr(custom_envs.Corridor, "step", leave)
    with pytest.raises(ConfigError, match="step cannot be compiled with jit and vmap: SystemExit: 0"):
        make(EnvConfig("own", _target_="support.custom_envs.Corridor"))
    monkeypatch.setattr(custom_envs.Corridor, "__init__", leave)
    with pytest.raises(ConfigError, match=r"env.kwargs={} is invalid for support.custom_envs.Corridor: SystemExit: 0"):
        make(EnvConfig("own", _target_="support.custom_envs.Corridor"))
