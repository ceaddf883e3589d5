"""Write the keys of other frameworks, next to ours, into the guides for their users.

python scripts/key_tables.py
"""

from pathlib import Path

from stoix_like.foreign_keys import foreign_keys

GUIDES = Path(__file__).resolve().parent.parent / "docs/guides"
PAGES = {
    "Stable-Baselines3": GUIDES / "coming_from_sb3.md",
    "CleanRL": GUIDES / "coming_from_cleanrl.md",
    "Stoix": GUIDES / "coming_from_stoix.md",
    "PureJaxRL": GUIDES / "coming_from_purejaxrl.md",
    "rejax": GUIDES / "coming_from_purejaxrl.md",
    "Ajax": GUIDES / "coming_from_purejaxrl.md",
    "TD-MPC2": GUIDES / "plan_in_latents.md",
    "JaxGCRL": GUIDES / "goals.md",
    "Q-chunking": GUIDES / "learn_from_data.md",
    "DreamerV3": GUIDES / "world_models.md",
}


def table(framework: str) -> str:
    """Return the table of a framework as markdown."""
    lines = [f"| {framework} | stoix_like | |", "|---|---|---|"]
    for key in foreign_keys():
        if key.framework == framework:
            ours = ", ".join(f"`{name}`" for name in key.ours) or "–"
            lines.append(f"| `{key.theirs}` | {ours} | {key.note} |")
    return "\n".join(lines)


def updated(text: str, framework: str) -> str:
    """Return a page with the table of a framework between its two markers."""
    before, start, rest = text.partition(f"<!-- keys: {framework} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not start or not end:
        raise SystemExit(f"the page has no <!-- keys: {framework} --> … <!-- end -->")
    return f"{before}{start}\n{table(framework)}\n\n{end}{after}"


def main() -> None:
    """Update every guide."""
    for framework, page in PAGES.items():
        page.write_text(updated(page.read_text(), framework))


if __name__ == "__main__":
    main()
