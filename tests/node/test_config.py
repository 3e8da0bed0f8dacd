"""Goal: every setting has bounds, and a value outside of them, or of another type, is refused in plain words.

Method: values that are wrong for every setting, also for one that is new; the edges of shares.
"""

import json
from pathlib import Path

import msgspec
import pytest

from warren.engine import _core
from warren.engine.catalog.node_directory import NodeDirectory, changed_settings
from warren.engine.config import PROFILES, Settings
from warren.engine.errors import CorruptRecord, UsageError
from warren.engine.kernel.formats import NODE_VERSION
from warren.engine.kernel.paths import TOPICS
from warren.engine.topics import formats

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
    kind = "(whole )?number( of bytes, without a unit)?"
    with pytest.raises(UsageError, match=f"^setting {name} must be a {kind}, not 'x'$"):
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
def test_what_goes_through_shared_memory_follows_what_it_depends_on(changes: dict[str, object]) -> None:
    settings = changed_settings(Settings(), changes).checked()
    assert 0 < settings.shared_bytes_max < Settings().shared_bytes_max < settings.message_bytes_max
    few = changed_settings(Settings(), {**changes, "message_bytes_max": 1000}).checked()
    assert few.shared_bytes_max == 1000


def test_the_largest_message_has_bounds() -> None:
    most = (128 << 20) + (64 << 10)
    assert changed_settings(Settings(), {"message_bytes_max": most}).checked().message_bytes_max == most
    for wrong in (0, most + 1):
        with pytest.raises(UsageError, match=f"message_bytes_max must lie between 1 and {most}, not {wrong}"):
            changed_settings(Settings(), {"message_bytes_max": wrong}).checked()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_topic_takes_the_largest_message_in_shared_memory_of_each_profile(profile: str) -> None:
    """Of a topic with the longest name, whatever part of it is told of it."""
    settings = changed_settings(Settings(), {"profile": profile}).checked()
    record = _core.record_size(0, 255, 0, settings.shared_bytes_max)
    assert record <= _core.topic_record_bytes_max(settings.topic_ring_bytes, settings.log_file_bytes)


def test_the_sizes_of_topics_have_the_defaults_of_their_formats() -> None:
    settings = Settings()
    found = settings.log_file_bytes, settings.consume_queue_entries, settings.index_slots, settings.index_entries
    assert found == (formats.LOG_FILE_BYTES, formats.CONSUME_QUEUE_ENTRIES, formats.INDEX_SLOTS, formats.INDEX_ENTRIES)


def test_small_sizes_of_topics_are_allowed() -> None:
    small = {"log_file_bytes": 1 << 20, "consume_queue_entries": 1, "index_slots": 1, "index_entries": 2}
    found = changed_settings(Settings(), {**small, "topic_ring_bytes": 65536}).checked()
    assert msgspec.structs.asdict(found).items() >= small.items()
    with pytest.raises(UsageError, match="setting log_file_bytes must be a multiple of 4096, not 1048577"):
        changed_settings(Settings(), {"log_file_bytes": (1 << 20) + 1}).checked()


def older(directory: NodeDirectory, **more: object) -> None:
    """Make its node.json one of the version before topics."""
    file = directory.path / "node.json"
    found = json.loads(file.read_text())
    settings = found["settings"]
    settings["log_file_bytes"] = settings.pop("log_rotate_bytes")
    for name in ("consume_queue_entries", "index_slots", "index_entries", "topic_ring_bytes"):
        del settings[name]
    file.write_text(json.dumps({**found, "format_version": 1, **more}))


def test_an_older_node_json_keeps_the_size_of_its_process_logs(tmp_path: Path) -> None:
    """Its log_file_bytes is what is log_rotate_bytes now; topics have their own."""
    directory = NodeDirectory(tmp_path)
    directory.lock()
    try:
        made = directory.open_or_make({"log_rotate_bytes": 8192, "workers": 3})
        older(directory)
        read = directory.open_or_make({})
        assert read == made
        assert (read.settings.log_rotate_bytes, read.settings.log_file_bytes) == (8192, 1 << 30)
        directory.write(read)
        assert json.loads((tmp_path / "node.json").read_text())["format_version"] == NODE_VERSION
        assert directory.read() == made
        older(directory, node_id="none")
        with pytest.raises(CorruptRecord, match=r"node\.json"):
            directory.read()
    finally:
        directory.unlock()


def test_the_files_of_the_commit_log_keep_their_size_once_there_are_topics(tmp_path: Path) -> None:
    directory = NodeDirectory(tmp_path)
    directory.lock()
    try:
        directory.open_or_make({})
        node = directory.open_or_make({"log_file_bytes": 1 << 20})
        assert node.settings.log_file_bytes == 1 << 20
        (tmp_path / TOPICS).mkdir()
        directory.write(node)
        with pytest.raises(UsageError, match=r"setting log_file_bytes of .* is 1048576 and cannot be changed"):
            directory.open_or_make({"log_file_bytes": 2 << 20})
        assert directory.open_or_make({"profile": "small"}).settings.log_file_bytes == 1 << 20
    finally:
        directory.unlock()
