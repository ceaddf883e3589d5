"""Execute the tutorial notebook, and append it to its page; run by mkdocs."""

import base64
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import mkdocs_gen_files
import nbclient
import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "guides/tutorial.ipynb"
PAGE = "guides/tutorial.md"
_TIMEOUT = 600  # seconds of a cell, on a machine that is busy
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def execute(path: Path) -> Any:
    """Execute a notebook in an empty directory, with this checkout of the package."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        client = nbclient.NotebookClient(
            notebook,
            timeout=_TIMEOUT,
            kernel_name="python3",
            resources={"metadata": {"path": directory}},
            # It warns that its local socket is not encrypted.
            extra_arguments=["--log-level=ERROR"],
        )
        client.execute(env=environment)
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """Join texts that were printed one after the other."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == "stream" == found[-1].output_type:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def page_of(notebook: Any) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as markdown, and its images by file name."""
    parts, images = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in joined(cell.outputs):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"tutorial-{len(images) + 1}.png"
                images[name] = base64.b64decode(data["image/png"])
                parts.append(f"![output of the cell](../images/{name})")
            elif "text/html" in data:
                text = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
                # Tables without a class get the style of the theme, and scroll on narrow screens.
                parts.append(re.sub(r"<table[^>]*>", "<table>", text))
            else:
                text = _ESCAPES.sub("", output.get("text", data.get("text/plain", ""))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", images


def write_tutorial() -> None:
    """Append the notebook to the page, which has its title, and write the images."""
    text, images = page_of(execute(ROOT / "docs" / NOTEBOOK))
    with mkdocs_gen_files.open(PAGE, "a") as file:
        file.write("\n" + text.removeprefix("# Tutorial\n\n"))
    for name, content in images.items():
        with mkdocs_gen_files.open(f"images/{name}", "wb") as file:
            file.write(content)


write_tutorial()
