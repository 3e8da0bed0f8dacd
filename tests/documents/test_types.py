"""Goal: whoever types what the documents show, or uses the public face, is told the truth by mypy and by pyright.

Method: all snippets, all examples and the cases of surface.py are checked at once by `mypy --strict` and by pyright,
each in its default settings (surface.py: pyright's strict ones), as by a user of the installed package: its py.typed
and stubs count. What they say is then looked at file by file.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from support.long import in_part
from support.snippets import EXAMPLES, ROOT, all_snippets
from support.waiting import patience

SURFACE = Path(__file__).with_name("surface.py")
#: file → what it says, for all that is checked
SOURCES = {
    **{snippet.name: snippet.code for snippet in all_snippets()},
    **{f"example_{path.stem}": path.read_text() for path in EXAMPLES},
    "surface": SURFACE.read_text(),
    # mistakes, which must be found: else nothing was really looked at
    "wrong": """import warren

body: str = warren.attach("data").queue("q").get().body
good: bytes = b""  # type: ignore[assignment]
fine: bytes = b""  # pyright: ignore[reportAssignmentType]
""",
}
#: line and name of each mistake, by checker
MISTAKES = {
    "mypy": [("3", "assignment"), ("4", "unused-ignore")],
    "pyright": [("3", "reportAssignmentType"), ("5", "reportUnnecessaryTypeIgnoreComment")],
}
#: page → the test that runs its snippets
RUN_BY = {
    "README.md": "tests/documents/test_readme.py",
    "docs/python.md": "tests/documents/test_python_guide.py",
    "docs/spark.md": "tests/spark/test_guide.py",
    "docs/spark-topics.md": "tests/spark/test_topic_guide.py",
    "docs/pipelines.md": "tests/spark/test_pipelines.py",
    "docs/scaling.md": "tests/spark/test_hosts.py",
    "docs/topics.md": "tests/documents/test_topics_guide.py",
    "docs/amqp.md": "tests/amqp/test_page.py",
    "docs/celery.md": "tests/task_queues/test_celery_project.py",
}
#: packages that have no types of their own, nor stubs that we want as a dependency
UNTYPED = ("pyarrow.*", "pandas.*", "celery.*", "pika.*")
Findings = dict[str, list[str]]
LIMIT_S = 120


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as it is installed (`tree`), and the files (`samples`)."""
    folder = tmp_path_factory.mktemp("types")
    package = folder / "tree" / "warren"
    package.mkdir(parents=True)
    for path in (ROOT / "warren").iterdir():
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            (package / path.name).symlink_to(path)
    for name in ("engine", "ipc", "workers"):
        (package / name).symlink_to(ROOT / name)
    (folder / "samples").mkdir()
    for name, text in SOURCES.items():
        (folder / "samples" / f"{name}.py").write_text(text)
    return folder


def run(place: Path, *command: str) -> str:
    """What a checker says; it has to end with 1, as something is wrong."""
    environment = os.environ | {"MYPYPATH": str(place / "tree"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S * patience(),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said_by_mypy(place: Path) -> Findings:
    options = ["[mypy]", "strict = True", "follow_imports = silent", "untyped_calls_exclude = dramatiq"]
    for package in UNTYPED:
        options += [f"[mypy-{package}]", "ignore_missing_imports = True"]
    (place / "mypy.ini").write_text("\n".join(options))
    said = run(place, "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "samples")
    found: Findings = defaultdict(list)
    for line in said.splitlines()[:-1]:
        match = re.fullmatch(r"samples/(\w+)\.py:(\d+: (?:error|note): .*)", line)
        assert match is not None, said
        found[match[1]].append(match[2])
    return found


@pytest.fixture(scope="module")
def said_by_pyright(place: Path) -> Findings:
    options = {
        "include": ["samples"],
        "extraPaths": ["tree"],
        "pythonVersion": "3.11",
        "strict": ["samples/surface.py"],
        "enableTypeIgnoreComments": False,  # those are mypy's
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (place / "pyrightconfig.json").write_text(json.dumps(options))
    said = json.loads(run(place, "pyright", "--project", ".", "--pythonpath", sys.executable, "--outputjson"))
    assert said["summary"]["filesAnalyzed"] == len(SOURCES)
    found: Findings = defaultdict(list)
    for item in said["generalDiagnostics"]:
        line = item["range"]["start"]["line"] + 1
        found[Path(item["file"]).stem].append(f"{line}: {item['message']} [{item.get('rule', '')}]")
    return found


@pytest.fixture(params=in_part(sorted(MISTAKES), 1))
def checker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def said(checker: str, request: pytest.FixtureRequest) -> Findings:
    """What one of the checkers says of each file."""
    found: Findings = request.getfixturevalue(f"said_by_{checker}")
    return found


def test_all_snippets_of_the_documents_are_among_them_and_each_page_has_a_test_that_runs_them() -> None:
    pages = Counter(snippet.page for snippet in all_snippets())
    assert pages.keys() == RUN_BY.keys()
    for page, path in RUN_BY.items():
        assert pages[page] == (ROOT / page).read_text().count("```python\n")
        assert f'snippets(ROOT / "{page}")' in (ROOT / path).read_text()


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"wrong"}))
def test_nothing_is_wrong_with(name: str, said: Findings) -> None:
    assert said.get(name, []) == []


def test_mistakes_are_found_and_so_are_comments_on_none(checker: str, said: Findings) -> None:
    found = [re.fullmatch(r"(\d+): .*\[(\w[\w-]*)\]", line, re.DOTALL) for line in said["wrong"]]
    assert [match and match.groups() for match in found] == MISTAKES[checker], said["wrong"]
