"""deploy/kubernetes/gradwatch.yaml: valid, restricted, and what it starts does start.

No cluster runs here. What a kubelet does to the container's files is done by hand: modes, owners
and links of a Secret and of a volume under fsGroup, a root that is read-only, no privilege.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import REPOSITORY, as_user, run_in_machine
from tests.support.yaml_files import documents

MANIFEST = REPOSITORY / "deploy" / "kubernetes" / "gradwatch.yaml"
PAGE = (REPOSITORY / "docs" / "kubernetes.md").read_text("utf-8")
OBJECTS = {each["kind"]: each for each in documents(MANIFEST.read_text("utf-8"))}
POD: dict[str, Any] = OBJECTS["StatefulSet"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.mark.slow
def test_the_manifest_and_the_pods_of_the_page_are_valid() -> None:
    library = pytest.importorskip("kubernetes_validate", reason="pip install --group readers")
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

    assert blocks
    for text in (MANIFEST.read_text("utf-8"), *blocks):
        for each in documents(text):
            library.validate(each, library.latest_version(), strict=True)


def test_the_pod_keeps_to_the_restricted_standard() -> None:
    pod, container = POD["securityContext"], CONTAINER["securityContext"]

    assert pod["runAsNonRoot"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert set.union(*(set(volume) for volume in POD["volumes"])) == {"name", "secret", "emptyDir"}
    assert POD["automountServiceAccountToken"] is False
    assert OBJECTS["ServiceAccount"]["automountServiceAccountToken"] is False
    assert {"memory"} <= set(CONTAINER["resources"]["limits"])


def test_names_and_ports_fit_together() -> None:
    service, stateful = OBJECTS["Service"]["spec"], OBJECTS["StatefulSet"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    volumes = [*POD["volumes"], *(each["metadata"] for each in stateful["volumeClaimTemplates"])]

    labels = stateful["template"]["metadata"]["labels"]
    assert service["selector"] == stateful["selector"]["matchLabels"] == labels
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert all(CONTAINER[f"{kind}Probe"]["httpGet"]["port"] in ports for kind in PROBES)
    assert {volume["name"] for volume in volumes} == set(mounts)
    assert stateful["replicas"] == 1
    user = POD["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (REPOSITORY / "Dockerfile").read_text("utf-8")


PROBES = {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}

SECRET = """
    # As kubelet lays out a Secret: links into a directory of root's, mode 1777 above, read-only.
    mkdir -p "$keys"
    mount -t tmpfs -o mode=1777 tmpfs "$keys"
    mkdir "$keys/..2026_11_23"
    ln -s ..2026_11_23 "$keys/..data"
    for name in server.key clients.toml tokens.toml; do
        install --owner 0 --group "$group" --mode 0440 /tmp/made/$name "$keys/..2026_11_23"
        ln -s ..data/$name "$keys/$name"
    done
    chgrp -R "$group" "$keys"
    chmod 3777 "$keys"
    mount -o remount,ro "$keys"
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_starts_with_a_secret_and_a_volume_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    context = POD["securityContext"]
    user, group = context["runAsUser"], context["fsGroup"]
    environ = [f"{each['name']}={each['value']}" for each in CONTAINER["env"]]
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    ask = "curl --silent --output /dev/null --write-out '%{http_code}\\n' http://127.0.0.1:8420"
    host = f"gradwatch.{json.loads(CONTAINER['env'][0]['value'])[-1].split('.')[1]}.svc"
    script = f"""
        gradwatch keys --dir /tmp/made >/dev/null
        keys={mounts["keys"]} group={group}
        {SECRET}
        mkdir {mounts["data"]}
        mount -t tmpfs -o gid={group},mode=2775 tmpfs {mounts["data"]}
        mount -o remount,ro /
        {as_user(user, *environ, "gradwatch", "serve", *CONTAINER["args"])} >/tmp/log 2>&1 &
        until_ok curl --silent --fail --output /dev/null http://127.0.0.1:8420/readyz
        {ask}{PROBES["liveness"]}
        {ask}/runs
        token=$(sed -n 's/^read = "\\(.*\\)"/\\1/p' /tmp/made/tokens.toml)
        {ask}/runs --header "Authorization: Bearer $token" --header 'Host: {host}:8420'
        {ask}/runs --header "Authorization: Bearer $token" --header 'Host: elsewhere'
        stat --format '%a' {mounts["data"]}/gradwatch/gradwatch.db
        grep -c 'may be written' /tmp/log || true
        kill $!; wait $!
    """

    printed = run_in_machine(script, tmp_path).split()

    assert printed == ["200", "401", "200", "421", "600", "0"]
