import base64

import pytest
from matplotlib.figure import Figure

from stoix_like.envs.scenes.svg import draw_svg


def test_vector_graphics_are_drawn_with_their_transforms_and_styles():
    piece = b'<svg width="10" height="10"><path d="M 0,0 L 10,0 L 10,10 z" style="fill:#0000ff; stroke:none"/></svg>'
    href = "data:image/svg+xml;base64," + base64.b64encode(piece).decode()
    axes = Figure().add_subplot()
    draw_svg(
        axes,
        f"""<svg width="100" height="50" xmlns:xlink="http://www.w3.org/1999/xlink">
        <g transform="translate(10,5) scale(2)" fill="rgb(255,0,0)"><circle cx="5" cy="5" r="1"/>
        <rect x="1" y="2" width="3" height="4" transform="rotate(90)"/></g>
        <image x="40" y="20" width="20" height="20" xlink:href="{href}"/>
        <text x="7" y="9" text-anchor="middle">K</text></svg>""",
    )
    circle, rectangle, triangle = (patch.get_path().get_extents().bounds for patch in axes.patches)
    # 10 + 2 × (5 ± 1) and 5 + 2 × (5 ± 1).
    assert circle == pytest.approx((18, 13, 4, 4), abs=0.1)
    # A rotation by 90° turns (x, y) to (-y, x): x from -6 to -2 and y from 1 to 4, then scaled and moved.
    assert rectangle == pytest.approx((10 - 12, 5 + 2, 8, 6))
    assert triangle == pytest.approx((40, 20, 20, 20))
    assert [patch.get_facecolor()[:3] for patch in axes.patches] == [(1, 0, 0), (1, 0, 0), (0, 0, 1)]
    (text,) = axes.texts
    assert (text.get_text(), text.get_position(), text.get_ha()) == ("K", (7, 9), "center")
    assert axes.get_ylim() == (50, 0)
