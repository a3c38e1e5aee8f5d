"""Write down which jars each set consists of, and the SHA-256 of each: ``make pins``.

Run this after a version in ``semel/spark/jars.py``, ``semel_lab/jars.py`` or of PySpark has
changed, and read the difference: what is written here is what semel loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jgo
from jgo.config import GlobalSettings

import semel.spark.jars
import semel_lab.jars
from semel.spark.jars import JarSet, artifact, sha256


def artifacts(jars: JarSet) -> Iterator[str]:
    """The coordinates of all files of a set."""
    if all(len(each.split(":")) > 3 for each in jars.coordinates):  # an archive, not a jar
        yield from jars.coordinates
        return
    # "!" asks for plain Maven rules. Without it jgo lets each coordinate's POM manage versions as
    # a BOM, and log4j's would put an old kafka-clients under the broker.
    endpoint = "+".join(f"{coordinate}!" for coordinate in jars.coordinates)
    for file in jgo.resolve(endpoint, repositories=GlobalSettings.load().repositories):
        if not jars.leaves_out(file.groupId, file.artifactId):
            parts = [file.groupId, file.artifactId, file.version, file.classifier]
            yield ":".join(parts).rstrip(":")


def pinned(jars: JarSet, coordinate: str) -> list[str | int]:
    """A file's pin, of what the repository has."""
    path = Path(artifact(jars.name, coordinate).resolve())
    return [coordinate, sha256(path), path.stat().st_size]


def main() -> None:
    """Pin the sets of both modules."""
    for module in (semel.spark.jars, semel_lab.jars):
        package = module.__name__.rpartition(".")[0]
        sets = {each.name: each for each in vars(module).values() if isinstance(each, JarSet)}
        written: dict[str, Any] = {}
        for name, jars in sorted(sets.items()):
            print(name, flush=True)
            written[name] = {
                "request": jars.request,
                "jars": [pinned(jars, coordinate) for coordinate in artifacts(jars)],
            }
        path = Path(str(files(package))) / "jars.json"
        text = json.dumps(written, indent=1)
        path.write_text(text + "\n")


if __name__ == "__main__":
    main()
