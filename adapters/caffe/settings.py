"""The text of a solver's file, with the changes for options of `caffe train`."""

from __future__ import annotations

import re
from pathlib import Path


class Settings:
    """The settings of a solver's file, as text without comments."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.text = re.sub(r"#.*", "", self._path.read_text())

    def get(self, name: str, default: str) -> str:
        """Returns the first word of a setting."""
        found = re.search(rf"\b{name}\s*:\s*(\w+)", self.text)
        return default if found is None else found[1]

    def snapshots_after_training(self, iteration: int) -> bool:
        """Returns whether Caffe takes a last snapshot here. It has just taken one at a multiple of `snapshot`."""
        wanted = self.get("snapshot_after_train", "true").lower() in ("true", "t", "1")
        every = int(self.get("snapshot", "0"))
        return wanted and (every == 0 or iteration % every != 0)

    def with_switches(self, level: int = 0, stage: str = "", iterations: int = 0) -> str:
        """Returns the text for a new file, because a solver reads its state only from its file."""
        text = self._with_prefix(self.text)
        if iterations:
            text = _with_setting(text, "max_iter", str(iterations))
        if level or stage:
            stages = " ".join(f'stage: "{name}"' for name in stage.split(",") if name)
            text = _with_state(text, f"level: {level} {stages}")
        return text

    def _with_prefix(self, text: str) -> str:
        """Returns the text with a `snapshot_prefix`. Caffe's default contains the name of the solver's file."""
        found = re.search(r"""\bsnapshot_prefix\s*:\s*["']([^"']*)["']""", text)
        if found is None:
            return _with_setting(text, "snapshot_prefix", f'"{self._path.with_suffix("")}"')
        if not Path(found[1]).is_dir():
            return text
        return f"{text[: found.start(1)]}{Path(found[1]) / self._path.stem}{text[found.end(1) :]}"


def _with_setting(text: str, name: str, value: str) -> str:
    kept = re.sub(rf"""\b{name}\s*:\s*("[^"]*"|'[^']*'|[\w.+-]+)""", "", text)
    return f"{kept}\n{name}: {value}\n"


def _with_state(text: str, state: str) -> str:
    """Returns the text with a train_state, which is added to an existing one: there can be only one."""
    own = re.search(r"\btrain_state\s*:?\s*\{([^}]*)\}", text)
    if own is None:
        return f"{text}\ntrain_state {{ {state} }}\n"
    kept = re.sub(r"\blevel\s*:\s*-?\w+", "", own[1]).strip()
    return f"{text[: own.start()]}train_state {{ {kept} {state} }}{text[own.end() :]}"
