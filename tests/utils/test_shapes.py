import re

import chex
import numpy as np
import pytest

from stoix_like.utils.shapes import check_last_axes, check_shapes

Q, V = np.zeros((4, 3)), np.zeros(4)


@pytest.mark.parametrize(
    ("layout", "arrays"),
    [
        ("q[B,A] a[B] v[B]", (Q, V, V)),
        ("q[B,A] other[B,M]", (Q, np.zeros((4, 7)))),
        ("r[B,T] values[B,T+1] c[B,T-1]", (Q, np.zeros((4, 4)), np.zeros((4, 2)))),
        ("x[*B] y[*B]", (Q, Q)),
        ("x[S,*B] y[*B]", (np.zeros((2, 4, 3)), Q)),
        ("x[*B] y[*B,A]", (V, Q)),
        ("x[*B] y[*B]", (0.5, np.float32(1.0))),
        ("x[] y[B]", (1, V)),
        ("x[B] y[B]", (V, None)),
    ],
)
def test_shapes_that_agree_are_accepted(layout, arrays):
    check_shapes(layout, arrays)


@pytest.mark.parametrize(
    ("layout", "arrays", "message"),
    [
        ("q[B,A] v[B]", (Q, V[:, None]), r"^v\.shape=\(4, 1\) must be \[B\], where B = 4, A = 3: .* q\[B,A\] v\[B\]$"),
        ("q[B,A] v[B]", (Q, V[:3]), r"^v\.shape=\(3,\)"),
        ("q[B,A] v[B]", (Q, 1.0), r"^v\.shape=\(\)"),
        ("q[B,A] p[B,A]", (Q, Q[:, :1]), r"^p\.shape=\(4, 1\)"),
        ("r[B,T] values[B,T+1]", (Q, Q), r"^values\.shape=\(4, 3\) must be \[B, T\+1\]"),
        ("x[*B] y[*B]", (V, V[:, None]), r"^y\.shape=\(4, 1\) must be \[\*B\], where \*B = \(4,\)"),
        ("x[S,*B] y[*B]", (Q, Q), r"^y\.shape=\(4, 3\)"),
        ("q[B,A] v[B]", (V, V), r"^q\.shape=\(4,\) must be \[B, A\]"),
    ],
)
def test_shapes_that_differ_are_refused(layout, arrays, message):
    with pytest.raises(ValueError, match=message):
        check_shapes(layout, arrays)


@pytest.mark.parametrize("shape", [(), (4,), (1, 3), (4, 1, 3)])
def test_last_axes_that_differ_are_refused(shape):
    for fitting in ((3,), (4, 3), (7, 4, 3), (1, 4, 3)):
        check_last_axes("x", fitting, (4, 3), 1, "y")
    last = r"\(3,\)" if len(shape) < 2 else r"\(4, 3\)"
    with pytest.raises(
        ValueError, match=rf"^x\.shape={re.escape(str(shape))} must end with {last}, the last axes of y$"
    ):
        check_last_axes("x", shape, (4, 3), 1, "y")


def test_the_switch_of_chex_turns_the_checks_off():
    chex.disable_asserts()
    try:
        check_shapes("q[B,A] v[B]", (Q, V[:, None]))
    finally:
        chex.enable_asserts()
