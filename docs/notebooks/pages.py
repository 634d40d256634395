"""Shows the notebooks as pages: MkDocs knows Markdown only. A hook of mkdocs.yml."""

import json

from mkdocs.structure.files import File


def page(text: str) -> str:
    """A notebook as Markdown: each cell, and below code what it printed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(line for output in cell.get("outputs", []) for line in output["text"])
        parts += [f"```text\n{printed}```"] * bool(printed)
    return "\n\n".join(parts) + "\n"


def on_files(files, config):
    """MkDocs calls it with what it has found."""
    for found in [*files]:
        if found.src_uri.endswith(".ipynb"):
            name = found.src_uri.replace(".ipynb", ".md")
            files.append(File.generated(config, name, content=page(found.content_string)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links go to the page, where a reader of the files has the notebook; its own page has both."""
    markdown = markdown.replace(".ipynb)", ".md)")
    if not page.file.src_uri.startswith("notebooks/"):
        return markdown
    return f"{markdown}\n[The notebook]({page.file.name}.ipynb)\n"
