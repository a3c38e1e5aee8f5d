"""The files of docs/deploy.md are what the programs that read them accept."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from semel.cli.worker import IGNORED, PASSED_ON
from semel.config import check_keys, read
from semel.config.worker import ClusterConfig
from tests.processes import run_to_end

FOLDER = Path(__file__).parents[1] / "examples" / "deploy"
KUBERNETES = "1.33"


def manifests() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def test_kubernetes_accepts_the_manifests() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for manifest in manifests():
        validator.validate(manifest, KUBERNETES, strict=True)


def test_the_manifests_fit_together() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    workers = by_kind["StatefulSet"]["spec"]
    (worker,) = workers["template"]["spec"]["containers"]
    labels = workers["template"]["metadata"]["labels"]
    assert workers["selector"]["matchLabels"].items() <= labels.items()
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert workers["serviceName"] == by_kind["Service"]["metadata"]["name"]
    volumes = {volume["name"] for volume in workers["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in worker["volumeMounts"]} == volumes
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert worker[probe]["httpGet"] == {"path": "/health", "port": "rest"}


def test_a_worker_takes_the_configuration_of_the_manifests() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    text = by_kind["ConfigMap"]["data"]["worker.properties"]
    keys = dict(line.split("=", 1) for line in text.splitlines())
    assert read(ClusterConfig, keys).group_id == "connect-cluster"
    assert list(check_keys(keys, [ClusterConfig], IGNORED, PASSED_ON)) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (FOLDER / "semel-worker.service").read_text()
    unit = tmp_path / "semel-worker.service"
    unit.write_text(text.replace("/opt/semel/bin/semel", sys.executable))
    verified = run_to_end(["systemd-analyze", "verify", unit])
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_image_installs_extras_that_there_are() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    (named,) = re.findall(r"/usr/src/semel\[([\w,]+)\]", text)
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    assert set(named.split(",")) <= project["optional-dependencies"].keys()
    assert 'ENTRYPOINT ["semel", "worker", "--env"]' in text
    copied = [word for line in re.findall(r"^COPY (.*)", text, re.M) for word in line.split()[:-1]]
    assert all((FOLDER.parents[1] / file).exists() for file in copied)
