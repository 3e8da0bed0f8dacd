"""The Python that the documents show: every block of README.md and docs/, and the programs of docs/examples/."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.py"))
_BLOCK = re.compile(r"^## (?P<heading>[^\n]+)$|^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One block of Python, as it stands there."""

    page: str  #: README.md, docs/….md
    number: int  #: in its page, from 0 on
    heading: str  #: of the section that it stands in; empty before the first
    code: str

    @property
    def name(self) -> str:
        """A module's name, its own."""
        return f"{re.sub(r'[^a-z]+', '_', self.page.lower())}_{self.number}"


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page, in order."""
    found: list[Snippet] = []
    heading = ""
    for match in _BLOCK.finditer(page.read_text()):
        if match["heading"] is not None:
            heading = match["heading"]
        else:
            found.append(Snippet(str(page.relative_to(ROOT)), len(found), heading, match["code"]))
    return found


def all_snippets() -> list[Snippet]:
    """Those of every page."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [snippet for page in pages for snippet in snippets(page)]
