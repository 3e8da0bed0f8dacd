"""Goal: the base of Store stands whatever its owner gives it, and the store's host whatever its helpers raise.

Method: owners that are wrong, gone, or in a cycle; a helper's work that fails.
"""

import gc
import weakref
from collections.abc import Callable

import pytest

import warren
from warren.engine._core import StoreFace
from warren.engine.store.host import _Helper


class Owner:
    """Stands for workers.client.Client; its core is no core."""

    core: object = "no core"
    face: StoreFace | None = None


def test_an_owner_without_a_core() -> None:
    for use in (
        lambda face: face.new_id(),
        lambda face: face.new_ids(3),
        lambda face: face.read(bytes(16)),
        lambda face: face.read_many([bytes(16)]),
        lambda face: face.write(bytes(16), b""),
        lambda face: face.write_many([bytes(16)], [b""]),
        lambda face: face.remove([bytes(16)]),
        lambda face: face.contains(bytes(16)),
    ):
        with pytest.raises(AttributeError):
            use(StoreFace(object(), False))
        with pytest.raises(TypeError):
            use(StoreFace(Owner(), True))
        with pytest.raises(warren.ClosedError):
            use(StoreFace.__new__(StoreFace))


def test_it_can_be_made_again_and_goes_with_its_cycle() -> None:
    owner = Owner()
    face = StoreFace(Owner(), True)
    assert face.transient
    face.__init__(owner, transient=False)  # type: ignore[misc]
    assert not face.transient
    with pytest.raises(AttributeError):
        face.transient = True  # type: ignore[misc]
    owner.face = face
    gone = weakref.ref(owner)
    del owner, face
    gc.collect()
    assert gone() is None


def test_what_nobody_expected_of_a_helper_is_raised_by_the_loop() -> None:
    handed: list[Callable[[], None]] = []
    helper = _Helper("helper", handed.append)
    helper.ask(handed.append, lambda: None)
    helper.ask([].pop)
    helper.shutdown(wait=True)
    done, failed = handed
    done()
    with pytest.raises(IndexError):
        failed()
