"""docs/streams.md shows what its examples print."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from tests.test_docs import ROOT


def test_the_examples_print_what_the_page_shows() -> None:
    page = (ROOT / "docs" / "streams.md").read_text()
    section = page.partition("\n## KStream and KTable\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(python|text)\n(.*?)```", section, re.DOTALL)
    assert len(blocks) > 20
    names: dict[str, Any] = {}
    printed = StringIO()
    for kind, text in blocks:
        if kind == "text":
            assert printed.getvalue() == text
            continue
        printed = StringIO()
        with redirect_stdout(printed):
            exec(text, names)
