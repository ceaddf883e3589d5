import chex
import numpy as np
import pytest

from stoix_like.utils.shapes import check_shapes

Q, V = np.zeros((4, 3)), np.zeros(4)


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


def test_the_switch_of_chex_turns_the_checks_off():
    chex.disable_asserts()
    try:
        check_shapes("q[B,A] v[B]", (Q, V[:, None]))
    finally:
        chex.enable_asserts()
