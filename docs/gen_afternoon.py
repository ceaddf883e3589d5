"""Execute the commands of *Everything in an afternoon*, and write their outputs to the page; run by mkdocs."""

import runpy
import tempfile
from pathlib import Path

import mkdocs_gen_files

PAGE = "guides/afternoon.md"
DOCS = Path(__file__).resolve().parent


def write_afternoon() -> None:
    """Write the page and its pictures."""
    with_outputs = runpy.run_path(str(DOCS / "executed.py"))["with_outputs"]
    with tempfile.TemporaryDirectory() as directory:
        text, pictures = with_outputs((DOCS / PAGE).read_text(), Path(directory).resolve(), "afternoon")
    with mkdocs_gen_files.open(PAGE, "w") as file:
        file.write(text)
    for name, content in pictures.items():
        with mkdocs_gen_files.open(f"images/{name}", "wb") as file:
            file.write(content)


write_afternoon()
