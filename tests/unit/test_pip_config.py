"""pip's settings: which file and which variable wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvfuzz.targets.pip_config import pip_settings


def test_pip_settings_come_from_its_files_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "everyone"))
    files = {
        "everyone/pip/pip.conf": "[global]\nindex_url = one\nextra-index-url =\n  a\n  b\n",
        ".pip/pip.conf": "[global]\nindex-url = two\ntimeout = 2\nproxy = 2\n",
        ".config/pip/pip.conf": "[download]\ntimeout = 3\n[global]\nproxy = 3\n",
        "more.conf": "[global]\ntimeout = 4\nproxy = 4\n[install]\nproxy = 5\n",
        "broken.conf": "index-url = x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    names = ("index-url", "extra-index-url", "timeout", "proxy")

    def settings() -> list[str | None]:
        found = pip_settings()
        return [found.get(name) for name in names]

    assert settings() == ["two", "\na\nb", "3", "3"]
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "more.conf"))
    assert settings() == ["one", "\na\nb", "4", "4"]
    monkeypatch.setenv("PIP_INDEX_URL", "env")
    monkeypatch.setenv("PIP_PROXY", "")
    assert settings() == ["env", "\na\nb", "4", "4"]
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "broken.conf"))
    assert settings() == ["env", "\na\nb", None, None]
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert settings() == ["env", None, None, None]
