"""The rooms of the C core: who may include and call whom, and that no two files of a room stand on each other.

Method: all C files of engine/ are read as text, functions by name; a call is a name of a function before a bracket. A
file and its header are one noun (`store/index`). What is called by a pointer is not seen, and may go up.
Run as a program it prints, for the rooms named, which files a file calls, by which functions, and the circles:
    python tests/house/test_rooms.py queues
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "engine"

#: What a room may include: rooms, or single headers of them. Queues and clients are clients of the stores.
MAY_INCLUDE = {
    "kernel": {"kernel"},
    "store": {"store", "kernel"},
    "queues": {"queues", "kernel", "store/client.h"},
    "topics": {"topics", "kernel"},
    "client": {"client", "kernel", "store/client.h"},
    "amqp": {"amqp", "kernel/bytes.h"},
    "binding": {"binding", "amqp", "client", "queues", "store", "topics", "kernel"},
}

#: comments; strings, but not the names of includes; characters
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|(?<!#include )"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
MACRO = re.compile(r"^#define (\w+)\([^)]*\)((?:\\\n|[^\n])*)", re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
CALL = re.compile(r"(?<![\w.])(?<!->)([A-Za-z_]\w*)\s*\(")


@dataclass
class Source:
    """A C file or header: what it includes, the functions (and macros with arguments) that it has, and their calls."""

    name: str  # room/file.c
    includes: list[str]
    local: set[str] = field(default_factory=set)  # functions that no other file sees
    calls: dict[str, set[str]] = field(default_factory=dict)  # of each function

    @property
    def noun(self) -> str:
        return self.name.rsplit(".", 1)[0]


def bodies(text: str) -> Iterator[tuple[str, str]]:
    """Return what stands before each outermost brace, and what stands in it."""
    depth = start = end = 0
    head = ""
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            if not depth:
                head, start = text[end : brace.start()], brace.end()
            depth += 1
        else:
            depth -= 1
            if not depth:
                end = brace.end()
                yield head, text[start : brace.start()]


def read(path: Path) -> Source:
    """Read a C file or header."""
    text = NOISE.sub(" ", path.read_text())
    source = Source(str(path.relative_to(path.parents[1])), INCLUDE.findall(text))
    for name, body in MACRO.findall(text):
        source.calls[name] = set(CALL.findall(body))
        if path.suffix == ".c":
            source.local.add(name)
    for head, body in bodies(DIRECTIVE.sub("", text)):
        declaration = re.split(r"[;}]", head)[-1].strip()
        name = CALL.search(declaration)
        if not name or not declaration.endswith(")"):
            continue  # a struct, an enum, a table
        source.calls[name[1]] = set(CALL.findall(body))
        if declaration.startswith("static") and path.suffix == ".c":
            source.local.add(name[1])
    return source


def sources() -> dict[str, Source]:
    """Read all files of the C core."""
    return {source.name: source for source in map(read, sorted(ENGINE.glob("*/*.[ch]")))}


def calls_between(files: Iterable[Source]) -> dict[tuple[str, str], set[str]]:
    """Return which functions of another noun each noun calls, by (caller, callee)."""
    files = list(files)
    owner = {name: file.noun for file in files for name in file.calls if name not in file.local}
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file in files:
        for called in file.calls.values():
            for name in called - file.local:
                if name in owner and owner[name] != file.noun:
                    found[file.noun, owner[name]].add(name)
    return found


def circles(edges: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Return the sets of nodes that reach each other (Tarjan)."""
    below: dict[str, list[str]] = defaultdict(list)
    for upper, lower in sorted(edges):
        below[upper].append(lower)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for lower in below.get(node, ()):
            if lower not in number:
                visit(lower)
            if lower in stack:
                lowest[node] = min(lowest[node], lowest[lower])
        if lowest[node] == number[node]:
            at = stack.index(node)
            members = set(stack[at:])
            del stack[at:]
            if len(members) > 1:
                found.append(members)

    for node in sorted(below):
        if node not in number:
            visit(node)
    return found


def floors(edges: Iterable[tuple[str, str]], nouns: Iterable[str]) -> dict[str, int]:
    """Return how many nouns stand below each one, one on the other; without circles only."""
    below: dict[str, set[str]] = defaultdict(set)
    for upper, lower in edges:
        below[upper].add(lower)
    height: dict[str, int] = {}

    def measure(noun: str) -> int:
        if noun not in height:
            height[noun] = 1 + max((measure(lower) for lower in below[noun]), default=-1)
        return height[noun]

    return {noun: measure(noun) for noun in nouns}


def test_what_is_read_is_what_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "a.h").write_text(
        "#define TWICE(x) \\\n    both(x)\nstatic inline int low(int n) { return n; }\nint late(int n);\n"
    )
    (folder / "a.c").write_text(
        '#include "room/a.h"\n/* no(); */ static const int table[] = {1};\n'
        "static int own(wr_x *x)\n{\n    return x->field(1) + x->by.field(2) + low(1);\n}\n"
        'int late(int n) { if (n) { puts("no("); } return own(late(n)); }\n'
    )
    header, file = read(folder / "a.h"), read(folder / "a.c")
    assert header.calls == {"TWICE": {"both"}, "low": set()}
    assert (file.includes, file.local) == (["room/a.h"], {"own"})
    assert file.calls == {"own": {"low"}, "late": {"if", "puts", "own", "late"}}


def test_circles_are_found() -> None:
    assert circles([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "f"), ("f", "e")]) == [{"b", "c"}, {"e", "f"}]


def test_a_room_includes_only_what_stands_below_it() -> None:
    wrong = [
        f"{source.name} includes {name}"
        for source in sources().values()
        for name in source.includes
        if not name.startswith("ipc/core/") and not {name, name.split("/")[0]} & MAY_INCLUDE[source.name.split("/")[0]]
    ]
    assert wrong == []


def test_an_include_names_the_room() -> None:
    """So a wrong direction shows in the line; and the headers of the carrier are named by their folder."""
    wrong = [
        f"{source.name} includes {name}"
        for source in sources().values()
        for name in source.includes
        if not (ENGINE / name).is_file() and not (ENGINE.parent / name).is_file()
    ]
    assert wrong == []


def test_only_the_binding_knows_python() -> None:
    who = {path.parent.name for path in ENGINE.glob("*/*.[ch]") if "<Python.h>" in path.read_text()}
    assert who == {"binding"}


def test_headers_do_not_include_each_other_in_circles() -> None:
    assert circles((source.name, name) for source in sources().values() for name in source.includes) == []


def test_files_of_a_room_do_not_call_each_other_in_circles() -> None:
    """Nor do those of two rooms."""
    assert [sorted(circle) for circle in circles(calls_between(sources().values()))] == []


def test_a_name_is_one_function() -> None:
    """It compiles only as long as no file includes both, and a reader who looks for it finds the other."""
    homes: dict[str, set[str]] = defaultdict(set)
    for source in sources().values():
        for name in source.calls.keys() - source.local:
            if name.startswith("wr_"):
                homes[name].add(source.noun)
    assert len(homes) > 300
    assert {name: sorted(nouns) for name, nouns in homes.items() if len(nouns) > 1} == {}


def main(rooms: list[str]) -> None:
    """Print the calls of rooms between files, from the ground up, and the circles."""
    files = sources().values()
    calls = calls_between(files)
    found = circles(calls)
    height = {} if found else floors(calls, {file.noun for file in files})
    for noun in sorted({file.noun for file in files}, key=lambda noun: (height.get(noun, 0), noun)):
        if noun.split("/")[0] in rooms:
            print(noun if found else f"{noun} (floor {height[noun]})")
            for (upper, lower), names in sorted(calls.items()):
                if upper == noun and (lower.split("/")[0] in rooms):
                    print(f"    {lower}: {', '.join(sorted(names))}")
    for circle in found:
        print("circle:", ", ".join(sorted(circle)))
    between = {(upper.split("/")[0], lower.split("/")[0]) for upper, lower in calls}
    print("circles of rooms:", circles(pair for pair in between if pair[0] != pair[1]) or "none")


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(MAY_INCLUDE))
