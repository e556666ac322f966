"""The package index that pip would use, and what it has of one project."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import pypi_simple
import requests
from packaging.version import InvalidVersion, Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT, DistributionPackage, PyPISimple
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.util import Retry

from kvfuzz.errors import TargetError
from kvfuzz.targets.pip_config import pip_settings

#: Called while a file is fetched, with bytes done and bytes in all (None if unknown).
Progress = Callable[[int, int | None], None]

MAX_DOWNLOAD_BYTES: Final = 1 << 30

# pip's own default.
_TIMEOUT_SECONDS: Final = 15.0


class _ReadOnce(io.FileIO):
    """A file that closes itself at its end, since requests leaves that to its connections."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if not data:
            self.close()
        return data


class _FileAdapter(BaseAdapter):
    """Indexes in a folder (file://), which pip takes too."""

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:  # type: ignore[override]
        """The file, or a folder's index.html."""
        assert request.url is not None
        path = Path(unquote(urlsplit(request.url).path))
        if path.is_dir():
            path /= "index.html"
        response = requests.Response()
        response.request = request
        response.url = request.url
        try:
            response.raw = _ReadOnce(path)
        except FileNotFoundError:
            response.status_code = 404
            return response
        except OSError as error:
            raise requests.ConnectionError(error.strerror, request=request) from None
        response.status_code = 200
        response.headers["Content-Length"] = str(path.stat().st_size)
        if path.suffix == ".html":
            response.headers["Content-Type"] = "text/html"
        return response

    def close(self) -> None:
        """Nothing is kept open."""


def _session(settings: dict[str, str]) -> requests.Session:
    session = requests.Session()
    session.mount("file://", _FileAdapter())
    # Not for connections: that would only delay the sentence, and urllib3 logs each.
    busy = Retry(
        total=3,
        connect=0,
        read=0,
        backoff_factor=0.5,
        status_forcelist=(500, 502, 503, 504),
        raise_on_status=False,
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=busy))
    # As with pip, REQUESTS_CA_BUNDLE comes before either.
    session.verify = settings.get("cert") or os.environ.get("SSL_CERT_FILE") or True
    if "client-cert" in settings:
        session.cert = settings["client-cert"]
    if "proxy" in settings:
        session.proxies = {"http": settings["proxy"], "https": settings["proxy"]}
    return session


class _Tracker:
    """pypi_simple's progress interface over a plain callback."""

    def __init__(self, total: int | None, progress: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def __enter__(self) -> Self:
        self.update(0)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, increment: int) -> None:
        """Count bytes that have arrived."""
        self._done += increment
        if self._done > MAX_DOWNLOAD_BYTES:
            raise TargetError(
                f"The package index sent over {MAX_DOWNLOAD_BYTES >> 20} MiB: that is no sdist."
            )
        if self._progress is not None:
            self._progress(self._done, self._total)


class Index:
    """The configured indexes, the main one first; extra ones are asked only if need be."""

    def __init__(self) -> None:
        settings = pip_settings()
        main = settings.get("index-url", PYPI_SIMPLE_ENDPOINT)
        self._endpoints = (main, *settings.get("extra-index-url", "").split())
        self._session = _session(settings)
        try:
            self._timeout = float(settings.get("timeout") or settings["default-timeout"])
        except (KeyError, ValueError):
            self._timeout = _TIMEOUT_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def sdists(
        self, project: str, wanted: Version | None = None
    ) -> dict[Version, DistributionPackage]:
        """The sdists that the indexes have of a project, by version.

        Args:
            project: Its name.
            wanted: Stop at the first index that has this version.

        Raises:
            TargetError: No index has the project; or one cannot be asked, and
                the others do not have what is wanted.
        """
        found: dict[Version, DistributionPackage] = {}
        failure: TargetError | None = None
        for endpoint in self._endpoints:
            client = PyPISimple(endpoint, session=self._session)
            try:
                packages = client.get_project_page(project, timeout=self._timeout).packages
            except pypi_simple.NoSuchProjectError:
                continue
            except Exception as error:  # whatever the index sent may not even parse
                failure = failure or _unreachable(endpoint, error)
                continue
            for package in packages:
                if package.package_type == "sdist" and package.version is not None:
                    with contextlib.suppress(InvalidVersion):
                        found.setdefault(Version(package.version), package)
            if wanted in found:
                return found
        if failure is not None:
            raise failure
        if not found:
            names = " and ".join(_shown(endpoint) for endpoint in self._endpoints)
            raise TargetError(
                f"The package index {names} has no source of {project}; "
                "set PIP_INDEX_URL to one that has."
            )
        return found

    def download(self, package: DistributionPackage, path: Path, progress: Progress | None) -> None:
        """Fetch a file whole, and check it against the digest that the index gives.

        Raises:
            TargetError: It could not be fetched, or is not what was promised.
            OSError: `path` cannot be written.
        """
        if "sha256" not in package.digests:
            raise TargetError(
                f"The package index gives no sha256 digest for {package.filename}, "
                "so kvfuzz does not use it."
            )
        client = PyPISimple(session=self._session)
        try:
            client.download_package(
                package,
                path,
                progress=lambda total: _Tracker(total, progress),
                timeout=self._timeout,
            )
        except pypi_simple.DigestMismatchError:
            raise TargetError(
                f"What the package index sent as {package.filename} does not have the digest "
                "that it gives (a torn download, or another file); run again."
            ) from None
        except requests.RequestException as error:
            raise _unreachable(package.url, error) from None


def _shown(url: str) -> str:
    """An index for people: no credentials, no query."""
    parts = urlsplit(url)
    return repr(parts.hostname or parts.path)[1:-1]


def _unreachable(url: str, error: Exception) -> TargetError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        why = f"it answered with status {status}"
    elif isinstance(error, requests.exceptions.SSLError):
        why = "its certificate is not trusted (PIP_CERT names the certificates to trust)"
    elif isinstance(error, requests.Timeout):
        why = "it did not answer in time"
    elif isinstance(error, requests.RequestException):
        why = "there is no connection"
    elif isinstance(error, OSError):  # no such file of certificates
        why = str(error)
    else:
        why = f"it answered with something else ({type(error).__name__})"
    return TargetError(
        f"The package index {_shown(url)} cannot be used: {why}; check the network, or set "
        "PIP_INDEX_URL to an index that can be reached. Cached releases need none."
    )
