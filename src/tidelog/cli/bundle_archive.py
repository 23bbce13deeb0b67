"""Archive: the file of a bundle. Everything goes through the redactor on its way in."""

from __future__ import annotations

import json
import os
import tarfile
import time
import zipfile
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Self

from tidelog.cli.redaction import Redactor


class Archive:
    """A .zip or .tar.gz that only its owner can read; removed again if making it fails."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.path = path
        self.count = 0
        self._redactor = redactor
        self._file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b")
        self._zip: zipfile.ZipFile | None = None
        self._tar: tarfile.TarFile | None = None
        if path.name.endswith(".zip"):
            self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED)
        else:
            self._tar = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._zip, self._tar):
            if opened is not None:
                opened.close()
        self._file.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def add_text(self, name: str, text: str) -> None:
        """Add a text without its secrets."""
        self._add(name, self._redactor.text(text))

    def _add(self, name: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self.count += 1
        if self._zip is not None:
            self._zip.writestr(name, data)
        elif self._tar is not None:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(data), round(time.time()), 0o600
            self._tar.addfile(info, BytesIO(data))

    def add_json(self, name: str, value: object) -> None:
        """Add a value; what has the name of a secret is removed."""
        self._add(name, json.dumps(self._redactor.value(value), indent=1, ensure_ascii=False) + "\n")
