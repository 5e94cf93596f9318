"""The site builds without a warning, its pages hold together, and a reader's browser is sent nowhere."""

from __future__ import annotations

import inspect
import re
import zlib
from collections import Counter
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import lash_store
from lash_store import testing
from tools.reference import expand
from tools.site import BROUGHT_IN, DOCS, BuildFailed, build, settings, staged

DIAGRAMS = sorted((DOCS / "assets" / "diagrams").glob("*.svg"))
FETCHING = {  # attributes by which a page makes a browser fetch something
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
INERT_LINKS = {"canonical", "next", "prev"}  # a <link> that only says where something is
STYLE_URL = re.compile(r"url\(\s*[\"']?(?P<url>[^\"')]+)|@import\s+[\"'](?P<imported>[^\"']+)")


class Page(HTMLParser):
    """What a built page fetches, links to and is linked by."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.links, self.fetched = list[str](), list[str]()
        self.ids = Counter[str]()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update([given["id"]] if given.get("id") else [])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag != "link" or not INERT_LINKS & set(given.get("rel", "").split()):
            self.fetched += [given[name] for name in FETCHING.get(tag, ()) if name in given]
        self.fetched += [found["url"] for found in STYLE_URL.finditer(given.get("style", "")) if found["url"]]


class Site:
    """The built pages, read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def pages(self) -> dict[Path, Page]:
        return {file: Page(file) for file in sorted(self.folder.rglob("*.html"))}

    def leads(self, page: Page, link: str) -> bool:
        parts = urlsplit(link)
        if parts.scheme in ("http", "https", "mailto"):
            return True
        target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
        if target.is_dir():
            target /= "index.html"
        if target not in self.pages:
            return target.is_file()
        return not parts.fragment or unquote(parts.fragment) in {*self.pages[target].ids, "__skip"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(build(tmp_path_factory.mktemp("site").resolve()))


pytestmark = pytest.mark.xdist_group("site")  # one build for all of them


# --- the build ------------------------------------------------------------------------------------------------------------


def test_every_page_of_the_documentation_is_on_the_site(site: Site) -> None:
    sources = {file.relative_to(DOCS) for file in DOCS.rglob("*.md")} | {Path(name) for name in BROUGHT_IN.values()}
    expected = {
        name.with_name("index.html" if name.stem == "README" else f"{name.stem}.html") for name in sources if name.suffix == ".md"
    }
    assert {file.relative_to(site.folder) for file in site.pages} == expected | {Path("404.html")}


def test_every_page_can_be_chosen_in_the_navigation() -> None:
    text = settings()
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    chosen = set(leaves(nav))
    pages = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md")} | {n for n in BROUGHT_IN.values() if n.endswith(".md")}
    assert pages - chosen == set()
    assert chosen - pages == set()


def leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(inside, list | type({}.values()))
    return [leaf for each in inside for leaf in leaves(each)]


def test_a_broken_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_nav, _, _ = settings().partition("\nnav:")
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "mkdocs.yml").write_text(without_nav)
    (docs / "index.md").write_text("# Home\n\n[nowhere](no-such-page.md)\n")
    for name, value in {"PROJECT": tmp_path, "DOCS": docs, "BROUGHT_IN": {}}.items():
        monkeypatch.setattr(f"tools.site.{name}", value)
    with pytest.raises(BuildFailed, match="page does not exist"):
        build(tmp_path / "build")
    (docs / "index.md").write_text("# Home\n\n[somewhere](#home)\n")
    assert (build(tmp_path / "build") / "index.html").is_file()


def test_a_link_to_a_file_that_the_site_lacks_is_named() -> None:
    with pytest.raises(BuildFailed, match=r"pyproject\.toml"):
        staged(DOCS / "why.md", "[settings](../pyproject.toml)")


def test_code_blocks_are_staged_as_they_are() -> None:
    block = "```python\nx = '[not a link](../SECURITY.md)'\n```\n"
    assert staged(DOCS / "why.md", block) == block
    assert staged(DOCS / "why.md", "[a link](../SECURITY.md#reporting)") == "[a link](security.md#reporting)"


# --- the pages ------------------------------------------------------------------------------------------------------------


def test_no_page_makes_a_browser_fetch_something_from_elsewhere(site: Site) -> None:
    elsewhere = [(page.file.name, url) for page in site.pages.values() for url in page.fetched if is_elsewhere(url)]
    assert elsewhere == []
    for style in site.folder.rglob("*.css"):
        urls = [found["url"] or found["imported"] for found in STYLE_URL.finditer(style.read_text())]
        assert [url for url in urls if is_elsewhere(url)] == [], style


def test_no_picture_fetches_something_from_elsewhere(site: Site) -> None:
    for picture in site.folder.rglob("*.svg"):
        text = picture.read_text()
        urls = [found["url"] or found["imported"] for found in STYLE_URL.finditer(text)]
        urls += re.findall(r"(?:href|src)=[\"']([^\"']+)", text)
        assert [url for url in urls if is_elsewhere(url)] == [], picture


def is_elsewhere(url: str) -> bool:
    return urlsplit(url).scheme not in ("", "data") or url.startswith("//")


def test_something_fetched_from_elsewhere_would_be_noticed(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(
        '<link rel="stylesheet" href="https://fonts.example/css"><img src="//cdn.example/x.png"><a href="https://a.example">'
    )
    assert [url for url in Page(file).fetched if is_elsewhere(url)] == ["https://fonts.example/css", "//cdn.example/x.png"]


def test_every_internal_link_and_anchor_leads_somewhere(site: Site) -> None:
    lost = [(page.file.name, link) for page in site.pages.values() for link in page.links if not site.leads(page, link)]
    assert [each for each in lost if each[0] != "404.html"] == []


def test_everything_a_page_fetches_is_on_the_site(site: Site) -> None:
    local = [(page, url) for page in site.pages.values() for url in page.fetched if not urlsplit(url).scheme]
    assert len(local) > len(site.pages)
    assert [(page.file.name, url) for page, url in local if page.file.name != "404.html" and not site.leads(page, url)] == []


def test_no_page_has_one_id_twice(site: Site) -> None:
    assert {(page.file.name, name) for page in site.pages.values() for name, count in page.ids.items() if count > 1} == set()


def test_diagrams_are_part_of_their_pages(site: Site) -> None:
    text = "".join(file.read_text() for file in site.pages)
    for diagram in DIAGRAMS:
        assert f'id="{diagram.stem}-title"' in text, diagram.name


# --- the reference --------------------------------------------------------------------------------------------------------


def test_everything_public_is_in_the_reference(site: Site) -> None:
    shown = {name for file, page in site.pages.items() if file.parent.name == "reference" for name in page.ids}
    for name in lash_store.__all__:
        value = getattr(lash_store, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert f"{value.__module__}.{value.__name__}" in shown, name
    aliases = {"Law", "ByteLaw"}  # of callables, which their users describe
    assert {f"lash_store.testing.{name}" for name in testing.__all__ if name not in aliases} <= shown


def test_the_reference_has_every_method_of_the_facades(site: Site) -> None:
    shown = {name for page in site.pages.values() for name in page.ids}
    for kind in [*facades(), lash_store.SessionHandle]:
        methods = {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
        missing = {f"{kind.__module__}.{kind.__name__}.{method}" for method in methods} - shown
        assert {name.rpartition(".")[2] for name in missing} <= {"start"}, kind  # `register` for handles


def facades() -> list[type]:
    with lash_store.Store.open("sqlite://:memory:") as store:
        return [type(value) for name, value in vars(store).items() if not name.startswith("_")]


def test_other_sites_can_link_to_the_reference(site: Site) -> None:
    inventory = (site.folder / "objects.inv").read_bytes()
    assert b"lash_store.model.commit.Commit " in zlib.decompress(inventory.split(b"\n", 4)[4])


def test_a_field_is_shown_with_its_type_default_and_reason() -> None:
    page = expand("::: types lash_store.model.limits\n")
    assert "| `id_bytes` | `int` | `200` | an id is a name; indexes hold it many times |" in page
    assert "| `expected_revision` | `int \\| None` |  |" in expand("::: types lash_store.model.commit")


# --- the diagrams ---------------------------------------------------------------------------------------------------------


def test_diagrams_share_their_style_and_know_light_and_dark() -> None:
    styles = {re.findall(r"<style>(.*?)</style>", diagram.read_text(), re.DOTALL)[0] for diagram in DIAGRAMS}
    assert len(DIAGRAMS) >= 6
    assert len(styles) == 1
    colours = re.findall(r"\.lsd \{ (--ink: [^}]+) \}", styles.pop())
    site = (DOCS / "assets" / "site.css").read_text()
    assert len(colours) == 2
    assert all(colour in site for colour in colours)


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.stem)
def test_a_diagram_says_what_it_shows(diagram: Path) -> None:
    text = diagram.read_text()
    assert f'<title id="{diagram.stem}-title">' in text
    assert f'<desc id="{diagram.stem}-desc">' in text
    assert re.findall(r'(?:href|src)="(?!#)', text) == []
