"""Settings: a yaml file and the key=value words after it. A misspelt one is an error that knows better."""

import argparse
import difflib
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from .errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
BACKBONES = {"longvie2": "longvie.yaml"}  # that can be played, and the settings above those of play


def version() -> str:
    """The version installed, or of the checkout this runs from."""
    try:
        return metadata.version("fast-ar-play")
    except metadata.PackageNotFoundError:
        return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def load(path: Path, overrides: Iterable[str] = ()) -> DictConfig:
    """The settings of a yaml file, changed by words like `memories.tempcache.cache.recent=8`."""
    try:
        cfg = OmegaConf.load(path)
    except OSError as error:
        shipped = ROOT / "configs"
        raise UsageError(f"No settings at {path}: {error.strerror}. The shipped ones: {shipped}.") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise UsageError(f"{path} is not readable as yaml: {error}") from None
    if not isinstance(cfg, DictConfig):
        raise UsageError(f"{path} holds no settings; lines like `seed: 0` were expected.")
    for name, value in cfg.items_ex(resolve=False):
        if isinstance(value, str) and value.endswith(".yaml"):  # settings that several files share
            cfg[name] = load(path.parent / value)
    OmegaConf.set_struct(cfg, True)
    for word in overrides:
        assign(cfg, word)
    return cfg


def above_play(path: Path, overrides: Sequence[str]) -> DictConfig:
    """The settings of configs/play.yaml and those of another file together, changed by words.

    Between them come those of the backbone that the file or the words name. Raises UsageError for one that
    there is not.
    """
    cfg, above = load(ROOT / "configs" / "play.yaml"), load(path)
    layers = [above]
    if (backbone := backbone_of(above, overrides)) is not None:
        layers = [load(ROOT / "configs" / BACKBONES[backbone]), above]
    if path.resolve() == ROOT / "configs" / "play.yaml":
        layers.pop()  # it is the lowest
    for layer in layers:
        OmegaConf.set_struct(cfg, False)
        cfg = cast(DictConfig, OmegaConf.merge(cfg, layer))
    OmegaConf.set_struct(cfg, True)
    for word in overrides:
        assign(cfg, word)
    return cfg


def backbone_of(cfg: DictConfig, overrides: Iterable[str]) -> str | None:
    """The backbone that settings or words name, the last word if several do."""
    said = [word.partition("=")[2] for word in overrides if word.startswith("backbone=")]
    name = said[-1] if said else cfg.get("backbone")
    if name in (None, "null", ""):
        return None
    if name not in BACKBONES:
        raise UsageError(f"No backbone {name!r}{suggestion(str(name), BACKBONES)}")
    return name


def assign(cfg: DictConfig, word: str) -> None:
    """Apply one key=value word. The key must exist, and a number stays a number.

    But a group that names a kind takes options it does not show: the kind knows which it has.
    """
    key, equals, text = word.partition("=")
    if not equals:
        raise UsageError(f"Cannot read {word!r}: a setting is changed by key=value, such as seed=3.")
    known = names(cfg)
    group = OmegaConf.select(cfg, key.rpartition(".")[0]) if "." in key else None
    shown = [str(name) for name in group] if isinstance(group, DictConfig) and "kind" in group else []
    last = key.rpartition(".")[2]
    if shown and last not in shown and not difflib.get_close_matches(last, shown, n=1, cutoff=0.75):
        OmegaConf.update(cfg, key, read(word, text), force_add=True)
        return
    check(key, known)
    now = OmegaConf.select(cfg, key)
    new = text if isinstance(now, str) else read(word, text)
    if new is not None and not fits(now, new):
        raise UsageError(f"{key} takes {kind(now)}, and {text!r} is not one.")
    if isinstance(new, DictConfig):
        for inner in names(new, f"{key}."):
            check(inner, known)
    OmegaConf.update(cfg, key, new)


def check(key: str, known: list[str]) -> None:
    if key not in known:
        raise UsageError(f"No setting {key}{suggestion(key, known)}")


def read(word: str, text: str) -> Any:
    """A value as yaml reads it."""
    try:
        return OmegaConf.from_dotlist([f"value={text}"]).value
    except (YAMLError, OmegaConfBaseException):
        raise UsageError(f"Cannot read the value in {word!r}; quote it as yaml would.") from None


def fits(now: Any, new: Any) -> bool:
    """Whether a setting that is `now` may become `new`."""
    if now is None:
        return True
    if isinstance(now, float):
        return isinstance(new, int | float) and not isinstance(new, bool)
    return type(now) is type(new)


def kind(value: Any) -> str:
    """What a setting like this takes."""
    kinds = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        ListConfig: "a list, such as [a, b]",
    }
    return kinds.get(type(value), "a group of settings")


def names(cfg: DictConfig, prefix: str = "") -> list[str]:
    """Every setting's full name, groups included."""
    found = []
    for key, value in cfg.items_ex(resolve=False):
        found.append(f"{prefix}{key}")
        if isinstance(value, DictConfig):
            found += names(value, f"{prefix}{key}.")
    return found


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a "No such thing" sentence: the nearest name there is, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    if not near:  # a right word in the wrong place: `recent` for `memories.tempcache.cache.recent`
        last = {full.rpartition(".")[2]: full for full in known}
        near = [last[match] for match in difflib.get_close_matches(name.rpartition(".")[2], last, n=1)]
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there is {', '.join(full for full in known if '.' not in full)}."


def shipped(path: str) -> Path:
    """A path as the user sees it, or else as the repository does: what is shipped is found from anywhere."""
    here = Path(path).expanduser()
    return here if here.is_absolute() or here.exists() else ROOT / here


class Parser(argparse.ArgumentParser):
    """Flags, a --config file and key=value words. One line says what is wrong and what was perhaps meant."""

    def __init__(self, verb: str, description: str, yaml: str | None = None) -> None:
        super().__init__(f"run.py {verb}", description=description, allow_abbrev=False)
        yaml = yaml or f"configs/{verb}.yaml"
        self.add_argument("settings", nargs="*", metavar="key=value", help=f"change any line of {yaml}")
        self.add_argument(
            "--config", type=Path, default=ROOT / yaml, metavar="FILE", help="take another file"
        )

    def sort(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
        """The flags, the plain words and the key=value words of a verb that takes them all."""
        flags = self.parse_intermixed_args(argv)
        plain = [word for word in flags.settings if "=" not in word]
        return flags, plain, [word for word in flags.settings if "=" in word]

    def one(
        self,
        argv: Sequence[str],
        what: str,
        example: str,
        load: Callable[[Path, Sequence[str]], DictConfig] = load,
    ) -> tuple[DictConfig, Path]:
        """The settings of a verb that is told of one thing, and where that is. Raises UsageError."""
        flags, found, changes = self.sort(argv)
        cfg = load(flags.config, changes)
        if len(found) != 1:
            raise UsageError(f"One {what} is needed, got {len(found)}: {example}")
        return cfg, Path(found[0]).expanduser()

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flags = [flag for action in self._actions for flag in action.option_strings]
            raise UsageError(f"No flag {unknown}{suggestion(unknown.split()[0].partition('=')[0], flags)}")
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see `python {self.prog} --help`.")


def of_verb(verb: str, words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a verb that has no flags of its own."""
    flags = Parser(verb, f"Takes its settings from configs/{verb}.yaml.").parse_intermixed_args(words)
    return cast(dict[str, Any], OmegaConf.to_container(load(flags.config, flags.settings), resolve=True))
