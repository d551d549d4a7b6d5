"""What the pages name exists: links, files, modules and their members."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"emmy(\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(docs|emmy|rulesets|golden|examples|experiments|tests)/[\w./-]+")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_and_modules_exist(page: Path):
    named = CODE.findall(page.read_text())
    files = [n for n in named if FILE.fullmatch(n) and not (ROOT / n).exists()]
    modules = [n for n in named if NAME.fullmatch(n) and not exists(n)]
    assert (files, modules) == ([], [])


def exists(name: str) -> bool:
    """`emmy.ir.normal` or `emmy.ir.normal.compose`."""
    found: object = importlib.import_module("emmy")
    for k, part in enumerate(name.split(".")[1:], 2):
        module = ".".join(name.split(".")[:k])
        if hasattr(found, part):
            found = getattr(found, part)
        elif hasattr(found, "__path__") and importlib.util.find_spec(module):
            found = importlib.import_module(module)
        else:
            return False
    return True


def test_every_page_is_in_the_list():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/README.md").read_text()))
    assert listed == {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
