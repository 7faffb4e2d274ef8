"""Check the documentation: every relative link in a Markdown file leads to a file that exists.

In: the Markdown files of the repository as git sees them, their links and images.
Out: one line for each broken link; exit code 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def markdown_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listing.splitlines() if (ROOT / name).exists()]


def broken_links(page: Path) -> list[str]:
    """Targets in `page` that name no file; addresses of other sites are not visited."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = (target.split("#")[0] for target in LINK.findall(text))
    return [
        target
        for target in targets
        if target
        and "://" not in target
        and not target.startswith("mailto:")
        and not (page.parent / target).exists()
    ]


def main() -> int:
    pages = markdown_files()
    problems = [
        f"{page.relative_to(ROOT)}: {target}" for page in pages for target in broken_links(page)
    ]
    for problem in problems:
        print(f"broken link: {problem}", file=sys.stderr)
    print(f"documentation: {len(pages)} pages, {len(problems)} broken links")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
