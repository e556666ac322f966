"""Settings of pip: which package index is configured, and how to reach it.

Read here rather than asked of pip, which need not be installed and takes half
a second to answer. Source: pip's documentation, "Configuration".
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import Final

import platformdirs

_NAME: Final = "pip.conf"
# As `pip download` reads them, weakest first.
_SECTIONS: Final = ("global", "download")


def _files() -> list[Path]:
    """Where pip looks for configuration files, weakest first; they need not exist."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    if sys.platform == "darwin":
        everyone = [Path(platformdirs.site_data_dir("pip", appauthor=False))]
        data = Path(platformdirs.user_data_dir("pip", appauthor=False))
        user = data if data.is_dir() else Path("~/.config/pip").expanduser()
    else:
        paths = platformdirs.site_config_dir("pip", appauthor=False, multipath=True)
        everyone = [*map(Path, paths.split(os.pathsep)), Path("/etc")]
        user = Path(platformdirs.user_config_dir("pip", appauthor=False))
    folders = everyone
    if not (named and Path(named).exists()):
        folders = [*folders, Path("~/.pip").expanduser(), user]
    files = [folder / _NAME for folder in (*folders, Path(sys.prefix))]
    return [*files, Path(named)] if named else files


def pip_settings() -> dict[str, str]:
    """Settings by their long names ("index-url"), as `pip download` would see them.

    A file that cannot be read or parsed counts for nothing.
    """
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for file in _files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section, settings in sections.items():
            if parser.has_section(section):
                settings.update((_long(name), value) for name, value in parser.items(section))
    variables = {
        _long(name.removeprefix("PIP_")): value
        for name, value in os.environ.items()
        if name.startswith("PIP_") and value
    }
    return {**sections["global"], **sections["download"], **variables}


def _long(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")
