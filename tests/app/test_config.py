import pytest

from app import config
from app.errors import UsageError

YAML = """
memory: tempcache
memories:
  dense: {}
  tempcache: {recent: 8, radius: 0.1}
world: null
record: false
seed: 0
fps: 17.5
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "play.yaml").write_text(YAML)
    return tmp_path / "play.yaml"


def test_a_word_changes_one_setting(path):
    cfg = config.load(path, ["memories.tempcache.recent=4", "seed=3", "fps=0", "world=cellar", "record=true"])
    assert cfg.memories.tempcache == {"recent": 4, "radius": 0.1}
    assert (cfg.seed, cfg.fps, cfg.world, cfg.record) == (3, 0, "cellar", True)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("memories.tempcach=1", "No setting memories.tempcach; did you mean memories.tempcache?"),
        (
            "memories.tempcache.recnt=1",
            "No setting memories.tempcache.recnt; did you mean memories.tempcache.recent?",
        ),
        (
            "memories.tempcache={recnt: 1}",
            "No setting memories.tempcache.recnt; did you mean memories.tempcache.recent?",
        ),
        ("recent=4", "No setting recent; did you mean memories.tempcache.recent?"),
        ("sed=1", "No setting sed; did you mean seed?"),
        ("qqqqqq=1", "No setting qqqqqq; there is memory, memories, world, record, seed, fps."),
        ("seed", "Cannot read 'seed': a setting is changed by key=value, such as seed=3."),
        ("seed=fast", "seed takes a whole number, and 'fast' is not one."),
        ("seed=1.5", "seed takes a whole number, and '1.5' is not one."),
        ("seed=true", "seed takes a whole number, and 'true' is not one."),
        ("fps=fast", "fps takes a number, and 'fast' is not one."),
        ("record=maybe", "record takes true or false, and 'maybe' is not one."),
        ("memories=1", "memories takes a group of settings, and '1' is not one."),
        ("world=[", "Cannot read the value in 'world=['; quote it as yaml would."),
    ],
)
def test_a_wrong_word_is_an_error_that_knows_better(path, word, line):
    with pytest.raises(UsageError) as error:
        config.load(path, [word])
    assert str(error.value) == line


def test_words_of_the_user_are_taken_as_they_are(path):
    assert config.load(path, ["memory=a: b, [c"]).memory == "a: b, [c"


def test_a_missing_or_broken_file_is_an_error_of_one_line(tmp_path):
    with pytest.raises(UsageError, match="No settings at .*none.yaml"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UsageError, match="not readable as yaml"):
        config.load(tmp_path / "broken.yaml")


def test_what_has_a_kind_takes_options_that_are_not_shown():
    """Their kind says later whether it has them."""
    cfg = config.load(config.ROOT / "configs" / "play.yaml", ["memories.tempcache.cache.threshold=0.8"])
    assert cfg.memories.tempcache.cache.threshold == 0.8
    with pytest.raises(UsageError, match="No setting memories.tempcache.depth"):
        config.load(config.ROOT / "configs" / "play.yaml", ["memories.tempcache.depth=3"])


def test_a_backbone_has_settings_between_those_of_play_and_of_a_verb():
    serve = config.ROOT / "configs" / "serve.yaml"
    cfg = config.above_play(serve, ["backbone=longvie2", "steps=3"])
    assert (cfg.backbone, cfg.weights, cfg.steps, cfg.fps) == ("longvie2", None, 3, 16.0)
    assert cfg.port == config.load(serve).port and cfg.saves == "saves"
    assert "longvie" not in config.above_play(serve, [])
    with pytest.raises(UsageError, match="No backbone 'long'; did you mean longvie2?"):
        config.above_play(serve, ["backbone=long"])
