"""What the site needs besides the pages of docs/: those that stand beside it, and links that stay in the site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Pages that stand beside docs/, and what they are called in the site.
BESIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"} | {
    path: path for path in (str(page.relative_to(ROOT)) for page in ROOT.glob("examples/**/README.md"))
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand beside docs/."""
    for path, called in BESIDE.items():
        files.append(File.generated(config, called, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """Mend the links of a page, which are written for those who read it in the repository."""
    called = page.file.src_uri
    origin = next((path for path, name in BESIDE.items() if name == called), f"docs/{called}")
    return _LINK.sub(lambda link: _mended(origin, called, *link.groups(default="")), markdown)


def _mended(origin: str, called: str, text: str, link: str, anchor: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    inside = BESIDE.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
    if inside is None or not inside.endswith(".md"):
        # Code is not part of the site.
        return text
    return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(called) or '.')}{anchor})"
