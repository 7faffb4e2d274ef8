"""Check the documentation, or write its generated pages (`--write`).

In: the Markdown files of the repository as git sees them, their links and images; the pages that
are generated from code. Out: one line for each link that leads nowhere and each page that differs
from the code's; exit code 1 if there is any.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "docs" / "configuration.md"
METRICS = ROOT / "docs" / "metrics.md"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def markdown_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listing.splitlines() if (ROOT / name).exists()]


def broken_links(page: Path) -> list[str]:
    """Return targets in `page` without such a file or heading; other sites are not visited."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [
        target
        for target in LINK.findall(text)
        if "://" not in target
        and not target.startswith("mailto:")
        and not link_exists(page, target)
    ]


def link_exists(page: Path, target: str) -> bool:
    """Return whether a link of `page` names a file, and its anchor one of the file's headings."""
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    if not path.exists() or not anchor or path.suffix != ".md":
        return path.exists()
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def generated_pages() -> dict[Path, str]:
    """Pages that are made from code, with the text they should have."""
    sys.path.insert(0, str(ROOT))
    from headrace.config.loading import key_reference
    from headrace.metrics import metric_reference
    from tasks.datasets.dataset_files import ANSWER_KEYS, PROMPT_KEYS

    configuration = key_reference.page(PROMPT_KEYS, ANSWER_KEYS)
    return {CONFIGURATION: configuration, METRICS: metric_reference.page()}


def write_pages() -> int:
    for path, text in generated_pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def main() -> int:
    if "--write" in sys.argv[1:]:
        return write_pages()
    stale = [
        path.relative_to(ROOT)
        for path, text in generated_pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for name in stale:
        print(f"stale: {name}; run scripts/docs.py --write", file=sys.stderr)
    pages = markdown_files()
    problems = [
        f"{page.relative_to(ROOT)}: {target}" for page in pages for target in broken_links(page)
    ]
    for problem in problems:
        print(f"broken link: {problem}", file=sys.stderr)
    print(f"documentation: {len(pages)} pages, {len(problems)} broken links, {len(stale)} stale")
    return 1 if problems or stale else 0


if __name__ == "__main__":
    sys.exit(main())
