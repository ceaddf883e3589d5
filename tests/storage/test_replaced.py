from stoix_like.storage import checkpoint, replaced
from support.stored import TARGETS, assert_intact, save


def test_a_checkpoint_stays_until_its_replacement_is_complete(tmp_path):
    """As a run leaves it that was killed while it wrote the second one."""
    save(tmp_path, 1)
    replaced.set_aside(tmp_path / "checkpoints", 1)
    assert checkpoint.steps(tmp_path) == []
    assert checkpoint.newest_readable(tmp_path, lambda step: step) == 1
    assert_intact(checkpoint.read(tmp_path, 1, TARGETS))
    save(tmp_path, 1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    assert_intact(checkpoint.read(tmp_path, 1, TARGETS))
