"""What the site has beyond docs/: pages of the repository's root, and links to its files.

mkdocs loads it (`hooks` in mkdocs.yml). In the repository pages link to files outside docs/, such
as tests. On the site such a link leads to `extra.source`, or becomes the file's name.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from markdown import Extension, Markdown  # type: ignore[import-untyped]
from markdown.treeprocessors import Treeprocessor  # type: ignore[import-untyped]
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository's root, and where they are in the site."""

_log: Final = logging.getLogger("mkdocs.gradwatch")  # `--strict` counts its warnings

_AFTER_INLINE: Final = 10
"""Priority: after `inline` (20) has made the links, before mkdocs (0) checks them."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have links looked at before mkdocs does."""
    config.markdown_extensions.append(_links)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    for name, uri in PAGES.items():
        text = moved_into_docs((ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, **_: object
) -> str:  # the text stays as it is
    """Note which page comes next, and where its links out of docs/ lead to."""
    _links.page = page.file.src_uri
    _links.source = str(config.extra["source"] or "").rstrip("/")
    return markdown


def moved_into_docs(text: str) -> str:
    """Return a page of the root with the links that it has in docs/."""
    text = re.sub(r"(?<=\]\()(?![a-z]+:|#)(?=[^)\s]+\))", "../", text)
    return re.sub(r'(\]\(\.\./|(?:src|srcset)=")docs/', lambda m: m[1].removesuffix("../"), text)


class _Links(Extension):  # type: ignore[misc]  # Markdown has no types
    page = ""
    source = ""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # its name in Markdown
        md.treeprocessors.register(_LinksOut(self), "gradwatch-links", _AFTER_INLINE)


class _LinksOut(Treeprocessor):  # type: ignore[misc]  # likewise
    def __init__(self, links: _Links) -> None:
        super().__init__()
        self._links = links

    def run(self, root: Element) -> None:
        for link in list(root.iter("a")):
            path, _, anchor = link.get("href", "").partition("#")
            target = self._outside(path)
            if target is None:
                continue
            if not (ROOT / target).exists():
                _log.warning("Doc file '%s': no '%s' to link to.", self._links.page, target)
            if target in PAGES:
                folder = posixpath.dirname(self._links.page) or "."
                uri = posixpath.relpath(PAGES[target], folder)
                link.set("href", f"{uri}#{anchor}" if anchor else uri)
            elif self._links.source:
                link.set("href", f"{self._links.source}/{target}")
            else:
                _unlink(link, target)

    def _outside(self, path: str) -> str | None:
        """Return where in the repository a link leads to if that is not in docs/."""
        if not path or re.match(r"[a-z]+:", path):
            return None
        target = posixpath.normpath(posixpath.join(posixpath.dirname(self._links.page), path))
        return target.removeprefix("../") if target.startswith("../") else None


def _unlink(link: Element, target: str) -> None:
    """Make a link its text, with the name of the file behind it unless it says that already."""
    said = "".join(link.itertext())
    link.tag = "span"
    del link.attrib["href"]
    if posixpath.basename(target) in said:
        return
    last = link[-1] if len(link) else None
    if last is None:
        link.text = f"{link.text or ''} ("
    else:
        last.tail = f"{last.tail or ''} ("
    name = SubElement(link, "code")
    name.text, name.tail = target, ")"


_links: Final = _Links()
