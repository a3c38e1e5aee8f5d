"""The Java of the embedded servers, and their logging."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from semel.core.errors import ServiceError

OLDEST = 17


def find_java() -> Path:
    """The ``java`` of JAVA_HOME, else the one on PATH, if it is at least Java 17."""
    candidates: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))

    unfit = []
    for source, java in candidates:
        release = java_release(java)
        if release is not None and release >= OLDEST:
            return java
        what = f"Java {release}" if release else "not a working Java"
        unfit.append(f"{java} (from {source}) is {what}")
    reasons = "; ".join(unfit) or "JAVA_HOME is not set and there is no java on PATH"
    raise ServiceError(
        f"Kafka needs Java {OLDEST} or newer, but {reasons}. Install one, for example "
        f"`apt-get install openjdk-{OLDEST}-jre-headless` or `dnf install "
        f"java-{OLDEST}-openjdk-headless`, or point JAVA_HOME at one."
    )


def find_jdk(server: str) -> Path:
    """Like :func:`find_java`, but only a JDK will do: some servers are started from source."""
    java = find_java()
    if not has_compiler(java):
        raise ServiceError(
            f"The embedded {server} needs a JDK, but {java} is a Java runtime without a "
            "compiler. Install one (openjdk-17-jdk-headless), or set JAVA_HOME to one."
        )
    return java


def has_compiler(java: Path) -> bool:
    """Whether a Java is a JDK, which can run a program from its source."""
    return (java.resolve().parent / "javac").exists()


def console_logging(level: str) -> str:
    """Log4j settings of a server that logs to its console, from a level upwards."""
    return f"""\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5level %c{{1}}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
"""


def java_release(java: Path) -> int | None:
    """A Java's feature release (8, 17, 21, ...), or None if this is no working Java."""
    if not os.access(java, os.X_OK):
        return None
    # Every JDK since 9 has this file at its root; ``java -version`` would take 100 ms.
    release_file = java.resolve().parent.parent / "release"
    try:
        stated = release_file.read_text(errors="replace")
    except OSError:
        stated = ""
    if not (match := re.search(r'^JAVA_VERSION="([^"]+)"', stated, re.MULTILINE)):
        try:
            answer = subprocess.run(
                [java, "-version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "([^"]+)"', answer.stderr)
    if not match:
        return None
    numbers = re.findall(r"\d+", match[1])
    if not numbers:
        return None
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])
