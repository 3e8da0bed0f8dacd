"""The errors are public and told: every class of engine/errors.py is in `warren`, and in the tree that its users read.

Method: the classes are taken from the module itself, so that a new one is missed here when it is missed there.
"""

import pickle
import re
import subprocess
import sys
import traceback

import pytest

import warren
from warren.engine import errors

CLASSES = {
    name: item for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, errors.Error)
}
NAME = re.compile(r"\b[A-Z]\w+")


def tree() -> dict[str, str]:
    """The tree in the module's docstring: name of a class -> name of the one above it."""
    assert errors.__doc__ is not None
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in errors.__doc__.split("```")[1].strip().splitlines():
        depth = len(line) - len(line.lstrip("│├└─ "))
        names = line.lstrip("│├└─ ").split("  ")[0]
        while above and above[-1][0] >= depth:
            above.pop()
        for name in NAME.findall(re.sub(r"\([^)]*\)", "", names)):
            found[name] = above[-1][1] if above else ""
        above.append((depth, names.split(" ")[0].rstrip(",")))
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_public(name: str) -> None:
    assert name in warren.__all__
    assert getattr(warren, name) is CLASSES[name]


def test_every_error_stands_in_the_tree_below_the_class_that_it_derives_from() -> None:
    bases = {name: item.__bases__[0].__name__ for name, item in CLASSES.items()}
    assert tree() == {**bases, "Error": ""}


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_comes_whole_through_pickle_and_by_its_name(name: str) -> None:
    """Process pools and Spark pickle what a task raises; answers of servers carry the name of a class."""
    if name == "CorruptRecord":
        corrupt: errors.Error = errors.CorruptRecord("file", 12, "a frame", "nothing", "restore it")
        made = errors.by_name(name, str(corrupt))
        assert str(made) == str(corrupt) == "file at byte 12: expected a frame, found nothing: restore it"
        assert str(pickle.loads(pickle.dumps(corrupt))) == str(corrupt)
    else:
        made = errors.by_name(name, "what happened")
    assert type(made) is CLASSES[name]
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), str(again)) == (type(made), str(made))


@pytest.mark.parametrize("name", CLASSES)
def test_tracebacks_and_pickles_have_the_public_name(name: str) -> None:
    made = (
        CLASSES[name]("file", 12, "a frame", "nothing") if name == "CorruptRecord" else CLASSES[name]("what happened")
    )
    assert traceback.format_exception_only(made)[0].startswith(f"warren.{name}: ")
    assert b"engine" not in pickle.dumps(made)


def test_another_process_reads_a_pickled_error_before_it_has_imported_anything() -> None:
    """A child of a pool has not imported warren when the error comes."""
    program = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)))"
    given = pickle.dumps(warren.QueueNotFound("gone"))
    ended = subprocess.run([sys.executable, "-c", program], input=given, capture_output=True, check=True)
    assert ended.stdout.decode().strip() == "QueueNotFound('gone')"


def test_the_error_of_the_spark_face_has_its_public_name() -> None:
    import warren.spark

    made = warren.spark.JavaMissing("none")
    assert traceback.format_exception_only(made) == ["warren.spark.JavaMissing: none\n"]
    assert type(pickle.loads(pickle.dumps(made))) is warren.spark.JavaMissing
