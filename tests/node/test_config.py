"""Goal: every setting has bounds, and a value outside of them, or of another type, is refused in plain words.

Method: values that are wrong for every setting, also for one that is new; the edges of shares.
"""

import msgspec
import pytest

from warren.engine.catalog.node_directory import changed_settings
from warren.engine.config import Settings
from warren.engine.errors import UsageError

NAMES = [field.name for field in msgspec.structs.fields(Settings) if field.type is not str]


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_value_is_refused_for_every_setting(name: str) -> None:
    with pytest.raises(UsageError, match=f"setting {name} must"):
        changed_settings(Settings(), {name: "-1"}).checked()


@pytest.mark.parametrize("name", NAMES)
def test_a_huge_value_is_refused_for_every_setting(name: str) -> None:
    """What no machine has memory for is a wrong value, and no start that fails; a setting without a bound has none."""
    with pytest.raises(UsageError, match=f"setting {name} must (be a power of two between|lie between|be at most)"):
        changed_settings(Settings(), {name: str(1 << 63)}).checked()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_is_refused_in_plain_words(name: str) -> None:
    with pytest.raises(UsageError, match=f"^setting {name} must be a (whole )?number, not 'x'$"):
        changed_settings(Settings(), {name: "x"})


@pytest.mark.parametrize("name", ["memory_used_max", "memory_own_max"])
@pytest.mark.parametrize("value", [0, 50, 1.01, float("nan"), float("inf"), "nan"])
def test_a_share_of_memory_lies_between_nothing_and_all(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"setting {name} must lie between 0.001 and 1.0, not "):
        changed_settings(Settings(), {name: value}).checked()


def test_the_edges_are_allowed() -> None:
    edges = {"memory_used_max": 1, "memory_own_max": "0.001", "disk_free_bytes_min": 0}
    found = changed_settings(Settings(), edges).checked()
    assert (found.memory_used_max, found.memory_own_max, found.disk_free_bytes_min) == (1.0, 0.001, 0)


@pytest.mark.parametrize("profile", ["small", "default", "large"])
def test_a_profile_sets_sizes_that_fit_together(profile: str) -> None:
    settings = changed_settings(Settings(), {"profile": profile}).checked()
    assert settings.profile == profile
    assert changed_settings(settings, {"profile": "default"}).checked() == Settings().checked()
    given = changed_settings(Settings(), {"profile": profile, "spin_us": 7, "images_n": "4"}).checked()
    assert (given.spin_us, given.images_n) == (7, 4), "what is given counts"


@pytest.mark.parametrize("profile", ["tiny", 3, None, ["small"]])
def test_an_unknown_profile_is_refused(profile: object) -> None:
    with pytest.raises(UsageError, match=r"there is no profile .*; the profiles are small, default, large"):
        changed_settings(Settings(), {"profile": profile})


@pytest.mark.parametrize("changes", [{"file_bytes": 1 << 20}, {"arena_bytes": 1 << 20}, {"profile": "small"}])
def test_the_largest_message_follows_what_it_depends_on(changes: dict[str, object]) -> None:
    settings = changed_settings(Settings(), changes).checked()
    assert settings.message_bytes_max < Settings().message_bytes_max
    with pytest.raises(UsageError, match="message_bytes_max must be at most"):
        changed_settings(Settings(), {**changes, "message_bytes_max": 4 << 20}).checked()
