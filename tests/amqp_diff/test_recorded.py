"""Goal: the recorded answers are those of the cases. Method: names are compared, nothing runs."""

from amqp_diff.cases import CASES, MODULES, missing
from amqp_diff.record import recorded


def test_every_case_is_recorded_and_every_record_has_a_case() -> None:
    names = {f"{module}.{name}" for module in MODULES if not missing(module) for name in recorded(module)}
    assert names == set(CASES), "python -m amqp_diff.record (see tests/amqp_diff/README.md)"
