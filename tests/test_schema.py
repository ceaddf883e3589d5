import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from stoix_like.errors import ConfigError, nearest
from stoix_like.schema import (
    Part,
    above,
    at_least,
    between,
    flat_hints,
    from_mapping,
    get_value,
    one_of,
    replace_values,
)


@dataclass(frozen=True)
class Inner:
    mode: Annotated[str, one_of("fast", "slow")] = "fast"


@dataclass(frozen=True)
class Outer:
    count: Annotated[int, at_least(1)]
    rate: Annotated[float, above(0.0)]
    share: Annotated[float, between(0.0, 1.0)] = 0.5
    limit: Annotated[int | None, at_least(1)] = None
    flag: bool = False
    names: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    scope: bool | Annotated[str, one_of("all", "some")] = True
    decay: Annotated[float, between(0.0, 1.0)] | bool = True
    width: Literal[1] = 1


def test_values_are_converted_to_their_annotated_types():
    values = {
        "count": 1e6,
        "rate": 1,
        "share": "1e-1",
        "limit": "3",
        "flag": True,
        "names": ["a", 2],
        "options": {"x": [1]},
        "inner": {"mode": "slow"},
    }
    outer = from_mapping(Outer, values, "outer")
    assert outer == Outer(1_000_000, 1.0, 0.1, 3, True, ("a", "2"), {"x": [1]}, Inner("slow"))
    assert isinstance(outer.count, int)
    assert isinstance(outer.rate, float)


def test_missing_fields_get_their_defaults_and_optional_ones_accept_none():
    outer = from_mapping(Outer, {"count": 1, "rate": 0.1, "limit": None}, "outer")
    assert outer == Outer(1, 0.1)
    for scope in (True, False, "some"):
        assert from_mapping(Outer, {"count": 1, "rate": 0.1, "scope": scope}, "outer").scope == scope


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "outer.count=0 is out of range: it must be at least 1"),
        ({"count": 1.5}, "outer.count=1.5 has the wrong type: it must be an integer"),
        ({"width": 2}, "outer.width=2 has no effect here: leave it out"),
        ({"count": None}, "'outer.count' is not set: it must be an integer"),
        ({"rate": 0.0}, "outer.rate=0.0 is out of range: it must be more than 0.0"),
        ({"rate": float("nan")}, "outer.rate=nan is out of range: it must be a finite number"),
        ({"rate": 1e40}, r"outer.rate=1e\+40 is out of range: it must be a finite number of 32 bits"),
        ({"share": 1.5}, r"outer.share=1.5 is out of range: it must be in \[0.0, 1.0\]"),
        ({"flag": "yes"}, "outer.flag=yes has the wrong type: it must be true or false"),
        ({"scope": "none"}, "outer.scope=none is not known: did you mean 'some'"),
        ({"scope": "yes"}, "outer.scope=yes is not known: choose from all, false, some, true$"),
        ({"decay": 2}, r"outer.decay=2.0 is out of range: it must be in \[0.0, 1.0\], or true or false$"),
        ({"decay": "no"}, "outer.decay=no has the wrong type: it must be a number, or true or false$"),
        ({"names": "a"}, "outer.names=a has the wrong type: it must be a list"),
        ({"options": 3}, "outer.options=3 has the wrong type: it must be a mapping"),
        ({"inner": 3}, "outer.inner=3 must be a mapping"),
        ({"inner": {"mode": "fats"}}, "outer.inner.mode=fats is not known: did you mean 'fast'"),
        ({"inner": {"mod": "fast"}}, "unknown key 'outer.inner.mod': did you mean 'mode'"),
        ({"cuont": 1}, "unknown key 'outer.cuont': did you mean 'count'"),
    ],
)
def test_a_refusal_names_the_key_the_value_and_what_would_work(values, message):
    with pytest.raises(ConfigError, match=message):
        from_mapping(Outer, {"count": 1, "rate": 1.0, **values}, "outer")


def test_nearest_suggests_close_names_or_lists_all():
    assert nearest("ppo", ["ff_ppo", "ff_dqn"]) == "did you mean 'ff_ppo'?"
    assert nearest("Acrobot", ["Acrobot-v1", "Pong-misc"]) == "did you mean 'Acrobot-v1'?"
    assert nearest("zzz", ["a", "b"]) == "choose from a, b"
    assert nearest("zzz", []) == "there are none"


@dataclass(frozen=True)
class Soft(Part):
    tau: Annotated[float, between(0.0, 1.0)]
    period: int = 1


@dataclass(frozen=True)
class Learner:
    gamma: float
    target: Soft


def test_keys_of_parts_stand_beside_those_of_the_whole():
    learner = from_mapping(Learner, {"gamma": 0.9, "tau": 1}, "system")
    assert learner == Learner(0.9, Soft(1.0))
    assert [get_value(learner, key) for key in ("gamma", "tau", "period")] == [0.9, 1.0, 1]
    assert list(flat_hints(Learner)) == ["gamma", "tau", "period"]
    assert replace_values(learner, {"tau": 0.5, "gamma": 0.1}) == Learner(0.1, Soft(0.5))
    for values, message in (
        ({"gamma": 1.0, "tau": 2.0}, r"system.tau=2.0 is out of range: it must be in \[0.0, 1.0\]"),
        ({"gamma": 1.0}, "'system.tau' is not set"),
        ({"gamma": 1.0, "tau": 0.1, "perod": 3}, "unknown key 'system.perod': .*period"),
        ({"gamma": 1.0, "target": {"tau": 0.1}}, "unknown key 'system.target'"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_mapping(Learner, values, "system")


class Kind(enum.Enum):
    A = "a"


def of_annotation(hint, value):
    return from_mapping(make_dataclass("One", [("x", hint)], frozen=True), {"x": value}, "system").x


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (Literal["constant", "linear"], "linear", "linear"),
        (Literal["constant", "linear"] | None, "linear", "linear"),
        # The command line reads 4 as a number.
        (Literal["4", "8"], 4, "4"),
        (list[int], [64, 32.0], (64, 32)),
        (Sequence[float], [1], (1.0,)),
        (tuple, [64, "a"], (64, "a")),
        (list, [64], (64,)),
        (tuple[float, int], [1, 2.0], (1.0, 2)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Mapping[str, tuple[int, ...]], {"a": [1]}, {"a": (1,)}),
        (int | str, "a", "a"),
        (float | str, "auto", "auto"),
        (str | float, 0.5, 0.5),
        (str | float, 1, 1.0),
        (str | float | None, None, None),
        (Literal["auto"] | float, 1, 1.0),
        (float | Sequence[float], [1, 2], (1.0, 2.0)),
        (str | Inner, {"mode": "slow"}, Inner("slow")),
        # What else a union or the default may be, no configuration sets.
        (float | np.ndarray, 0.5, 0.5),
        (str | Callable[..., Any] | None, "a", "a"),
        (object, [1], [1]),
        (np.dtype | None, "bfloat16", "bfloat16"),
    ],
)
def test_annotations_of_users_are_read(hint, value, converted):
    found = of_annotation(hint, value)
    assert (found, type(found)) == (converted, type(converted))


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Literal["constant", "linear"], "linea", "system.x=linea is not known: did you mean 'linear'?"),
        (tuple[int, float], [1], "system.x=[1] has the wrong length: it must have 2 entries"),
        (tuple[int, float], [1, "a"], "system.x[1]=a has the wrong type: it must be a number"),
        (dict[str, int], {"a": 0.5}, "system.x.a=0.5 has the wrong type: it must be an integer"),
        (Sequence[int], 3, "system.x=3 has the wrong type: it must be a list: write [3]"),
        # A number out of range is no string.
        (Annotated[float, between(0.0, 1.0)] | str, 2.0, "system.x=2.0 is out of range: it must be in [0.0, 1.0]"),
        (float | str, math.inf, "system.x=inf is out of range: it must be a finite number"),
        (Kind, "a", f"system.x=a cannot be set: {__name__}.Kind is built by a block with a _target_"),
        (Kind | None, "a", f"{__name__}.Kind is built by a block"),
        (set[int], [1], "set[int] is built by a block"),
        (float | np.ndarray, "a", "system.x=a has the wrong type: it must be a number"),
    ],
)
def test_values_and_annotations_that_do_not_fit_are_refused(hint, value, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        of_annotation(hint, value)


def test_what_no_configuration_sets_may_have_any_annotation():
    of_default = make_dataclass("One", [("loss", Callable[..., Any], field(default=print)), ("x", int)], kw_only=True)
    assert from_mapping(of_default, {"x": 1}, "system") == of_default(x=1)
    with pytest.raises(ConfigError, match="system.loss=a cannot be set: "):
        from_mapping(of_default, {"x": 1, "loss": "a"}, "system")


class Undecorated(Learner):
    lr: float


class WithoutFields(Learner):
    has_lr: ClassVar[bool] = False


def test_a_class_with_annotations_of_its_own_is_decorated():
    with pytest.raises(ConfigError, match=r"test_schema.Undecorated has annotations that are not fields, lr: decorate"):
        flat_hints(Undecorated)
    assert flat_hints(WithoutFields) == flat_hints(Learner)
