"""Builds the documentation as a site: `python -m tools.site` writes build/site. It fetches nothing, and a warning is an error.

The pages are written to be read in the repository, too. A copy of them is staged for the site, with four changes: pages from
outside of docs/ are brought in, links to those are turned to the copies, diagrams are put into the page (so that they follow its
light and dark), and the mark of a code block that needs a server becomes a title.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import reference

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
BUILD = PROJECT / "build"

# Pages that live elsewhere in the repository, and what they are called on the site.
BROUGHT_IN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "examples/background_agent.py": "background_agent.py",
}
ALL_OF_FOLDER = re.compile(r"^(?P<indent> +)- (?P<folder>[\w/]+)/\*\.md\b.*\n", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>\))")
DIAGRAM = re.compile(r"^!\[(?P<what>[^\]]+)\]\((?P<file>\S+/diagrams/\S+\.svg)\)$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SERVER_BLOCK = re.compile(r"^```python postgres$", re.MULTILINE)


class BuildFailed(Exception):
    """The builder's own words are in the message."""


def main(arguments: Sequence[str]) -> int:
    """Build, and say where."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the documentation as a site.")
    parser.add_argument("--into", type=Path, default=BUILD, help="the folder for site/ and its staged source (default: build)")
    into: Path = parser.parse_args(arguments).into
    try:
        site = build(into)
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(list(site.rglob('*.html')))} pages in {site}; open {site / 'index.html'}")
    return 0


def build(into: Path) -> Path:
    """Stage the pages and build them; the folder of the site. BuildFailed when anything is wrong with a page."""
    source = into / "site-source"
    stage(source)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    said = COLOUR.sub("", done.stdout + done.stderr).partition("\nTraceback")[0]
    if done.returncode != 0 or "could not be found" in said or "Warning:" in said:
        raise BuildFailed(said)
    site = into / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(source / "site", site)
    return site


# --- staging --------------------------------------------------------------------------------------------------------------


def stage(source: Path) -> None:
    """Make `source` a project of the site builder: its settings, the package to document, and all pages."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    (source / "mkdocs.yml").write_text(settings())
    (source / "src").symlink_to(PROJECT / "src")
    for file in [*DOCS.rglob("*"), *(PROJECT / name for name in BROUGHT_IN if name != "README.md")]:
        if file.is_file():
            _stage_file(file, source / "docs" / staged_name(file))


def settings() -> str:
    """The builder's settings, with every page of a folder where the navigation says `folder/*.md`."""
    return ALL_OF_FOLDER.sub(lambda found: "".join(_entries(found)), (PROJECT / "mkdocs.yml").read_text())


def _entries(found: re.Match[str]) -> list[str]:
    pages = sorted(page for page in (DOCS / found["folder"]).glob("*.md") if page.name != "README.md")
    return [f"{found['indent']}- {found['folder']}/{page.name}\n" for page in pages]


def _stage_file(file: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    if copy.suffix != ".md":
        shutil.copy(file, copy)
    elif file.suffix != ".md":
        copy.write_text(f"# License\n\n{file.read_text()}")
    else:
        copy.write_text(reference.expand(staged(file, file.read_text())))


def staged(page: Path, text: str) -> str:
    """The text of a page as the site has it. Code blocks keep theirs."""
    pieces, end = list[str](), 0
    for fence in FENCED.finditer(text):
        pieces += [_prose(page, text[end : fence.start()]), SERVER_BLOCK.sub('```python title="PostgreSQL"', fence[0])]
        end = fence.end()
    return "".join([*pieces, _prose(page, text[end:])])


def _prose(page: Path, text: str) -> str:
    text = DIAGRAM.sub(lambda found: _drawn(page, found["file"]), text)
    return LINK.sub(lambda link: link["before"] + _turned(page, link["target"]) + link["after"], text)


def _drawn(page: Path, file: str) -> str:
    """A diagram as part of the page. One line: a blank one would end the block."""
    drawing = (page.parent / file).read_text()
    return f'<figure class="diagram">{" ".join(drawing.split())}</figure>'


def _turned(page: Path, target: str) -> str:
    """Where a link leads on the site."""
    file, mark, anchor = target.partition("#")
    if not file or "://" in file:
        return target
    found = (page.parent / file).resolve()
    if not found.is_file():
        return target  # the builder complains
    here = Path(staged_name(page)).parent
    return os.path.relpath(staged_name(found), here) + mark + anchor


def staged_name(file: Path) -> str:
    """The path of a page or file below the site's docs/."""
    if file.is_relative_to(DOCS):
        return str(file.relative_to(DOCS))
    name = str(file.relative_to(PROJECT))
    if name not in BROUGHT_IN:
        raise BuildFailed(f"a page links to {name}, which the site does not have: name it in tools/site.py")
    return BROUGHT_IN[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
