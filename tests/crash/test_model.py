"""The explicit-state models of the protocols: no reachable state breaks an invariant, and every rule is needed.

Goal: the store's ring + flying + directory + index + head, the large publish, deliveries, and the log of topics hold
with kills between any two steps.
Method: breadth-first search of each model; then each rule is broken in turn, and the search must find what that does.
The models are of the protocols, not of the code: what changes neither is not tried at length by each run.
"""

from typing import Any

import pytest

from warren.tools.model import __main__ as models
from warren.tools.model.search import search

pytestmark = pytest.mark.crash

ALL = [
    pytest.param(model, id=f"{name}: {text}", marks=[pytest.mark.long] if place else [])
    for name, module in models.MODELS
    for place, (text, model) in enumerate(module.STANDARD.items())
]


@pytest.mark.parametrize("model", ALL)
def test_no_reachable_state_is_wrong(model: Any) -> None:
    found = search(model)
    assert found.violation is None, str(found)
    assert found.states > 1000, "a model this small shows nothing"
    assert found.rests > 0, "the model never comes to rest"
    print(found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "broken"),
    [pytest.param(rule, broken, id=f"{name}: {rule}") for name, rule, _, broken in models.mutants()],
)
def test_every_rule_is_needed(rule: str, broken: dict[str, Any]) -> None:
    caught = models.caught(broken)
    assert caught is not None, f"the model does not notice that {rule} is broken"
    print(f"{rule}: {caught[1].violation}")
