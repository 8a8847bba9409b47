"""deploy/cluster: three nodes, three NATS servers and PostgreSQL, by Compose and by Kubernetes.

Neither runs here. Both files are valid, what they set exists, and what they start is started: NATS
with its file, PostgreSQL, and the nodes with their arguments, environment, names and keys.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from gradwatch_server.cli.app import app
from gradwatch_server.settings import Settings
from tests.support.machine import REPOSITORY, as_user, run_in_machine
from tests.support.programs import program
from tests.support.yaml_files import documents

FOLDER: Final = REPOSITORY / "deploy" / "cluster"
CONF: Final = FOLDER / "nats.conf"
(COMPOSE,) = documents((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
MANIFEST: Final = (FOLDER / "kubernetes.yaml").read_text("utf-8")
OBJECTS: Final = {(own["kind"], own["metadata"]["name"]): own for own in documents(MANIFEST)}
SETS: Final = {name: own["spec"] for (kind, name), own in OBJECTS.items() if kind == "StatefulSet"}
PODS: Final = {name: own["template"]["spec"] for name, own in SETS.items()}
GRADWATCH: Final[dict[str, Any]] = PODS["gradwatch"]["containers"][0]
PASSWORDS: Final = {"nats": "n5ecret", "postgres": "6ecret"}
USER: Final = 10001
NUMBERS: Final = range(3)


@dataclass(frozen=True, slots=True)
class Node:
    """A node as one of the files starts it."""

    name: str
    host: str
    arguments: tuple[str, ...]
    environ: dict[str, str]


def of_compose(number: int) -> Node:
    """Return a node of compose.yaml, with passwords put in."""
    service = SERVICES[f"node-{number}"]
    passwords = {f"GRADWATCH_{name.upper()}_PASSWORD": own for name, own in PASSWORDS.items()}
    environ = {
        name: re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: passwords[found[1]], value)
        for name, value in service["environment"].items()
    }
    return Node(f"node-{number}", f"node-{number}", tuple(service["command"]), environ)


def of_kubernetes(number: int) -> Node:
    """Return a pod of kubernetes.yaml, with the secrets that the head of the file makes."""
    name = f"gradwatch-{number}"
    environ = {each["name"]: value_of(each, name) for each in GRADWATCH["env"]}
    del environ["POD"]  # is for the others only
    arguments = (own.replace("/run/gradwatch/keys", "/data/keys") for own in GRADWATCH["args"])
    return Node(name, f"{name}.{SETS['gradwatch']['serviceName']}", tuple(arguments), environ)


def value_of(variable: dict[str, Any], pod: str) -> str:
    """Return what an environment variable of a pod is."""
    if "value" in variable:
        return str(variable["value"]).replace("$(POD)", pod)
    source = variable["valueFrom"]
    if "fieldRef" in source:
        assert source["fieldRef"]["fieldPath"] == "metadata.name"
        return pod
    key = source["secretKeyRef"]["key"]
    found = re.search(rf'^# .*--from-literal={key}="(.*?)"', MANIFEST, re.MULTILINE)
    assert found is not None, key
    return re.sub(r"\$(\w+)", lambda name: PASSWORDS[name[1]], found[1])


@pytest.mark.slow
def test_both_files_are_valid() -> None:
    """By the schema of the Compose specification, and by those of the newest Kubernetes known."""
    library = pytest.importorskip("kubernetes_validate", reason="pip install --group readers")
    pytest.importorskip("check_jsonschema", reason="pip install --group readers")
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema, FOLDER / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for each in OBJECTS.values():
        library.validate(each, library.latest_version(), strict=True)


@pytest.mark.parametrize("make", [of_compose, of_kubernetes])
def test_what_nodes_are_given_exists(make: Any) -> None:
    """Every option is one of `gradwatch serve`, every variable one of its settings."""
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {name for parameter in serve.params for name in parameter.opts}
    nodes = [make(number) for number in NUMBERS]

    for node in nodes:
        assert {own.partition("=")[0] for own in node.arguments} <= options
        settings = {own.removeprefix("GRADWATCH_").lower() for own in node.environ}
        assert settings <= Settings.model_fields.keys()
        shown = " ".join((*node.arguments, *node.environ.values()))
        assert node.name in shown
        assert f"http://{node.host}:8420" in shown
    assert len({node.name for node in nodes}) == len(nodes)


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_confined_and_on_loopback(name: str) -> None:
    """Its image has a version; passwords come from the environment."""
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(own.startswith("127.0.0.1:") for own in service.get("ports", []))
    assert "build" in service or re.search(r":\d+\.\d+(\.\d+)?$", service["image"])
    for key, value in service.get("environment", {}).items():
        is_secret = key.endswith("PASSWORD") or key in ("GRADWATCH_CLUSTER", "GRADWATCH_LEDGER")
        assert is_secret == ("_PASSWORD:?" in value), key


@pytest.mark.parametrize("name", PODS)
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    """And none has a token of the API, or a password in the file."""
    pod, (container,) = PODS[name], PODS[name]["containers"]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert re.search(r":\d+\.\d+(\.\d+)?$", container["image"])
    plain = {each["name"] for each in container["env"] if "value" in each}
    assert not any(re.search("PASSWORD|CLUSTER$|LEDGER", own) for own in plain)
    mounted = {own["name"] for own in container["volumeMounts"]}
    claims = {own["metadata"]["name"] for own in SETS[name].get("volumeClaimTemplates", [])}
    assert mounted == {own["name"] for own in pod["volumes"]} | claims


@pytest.mark.parametrize("name", ["gradwatch", "nats"])
def test_three_pods_fail_apart(name: str) -> None:
    """On three machines, in as many zones as there are, and one at a time where that is chosen."""
    labels = {"app.kubernetes.io/name": name}
    (rule,) = PODS[name]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (spread,) = PODS[name]["topologySpreadConstraints"]
    budget = OBJECTS["PodDisruptionBudget", name]["spec"]

    assert SETS[name]["replicas"] == len(NUMBERS)
    assert SETS[name]["template"]["metadata"]["labels"] == labels
    assert rule == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": labels},
    }
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"] == budget["selector"] == {"matchLabels": labels}
    assert budget["maxUnavailable"] == 1
    headless = OBJECTS["Service", SETS[name]["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True


def test_traffic_does_not_depend_on_what_all_nodes_share() -> None:
    """A node has to be in order to be counted; later one that answers is asked."""
    probes = {"startup": "/readyz", "readiness": "/healthz", "liveness": "/healthz"}

    for kind, path in probes.items():
        assert GRADWATCH[f"{kind}Probe"]["httpGet"] == {"path": path, "port": "http"}


@pytest.mark.parametrize("name", ["nats", "postgres"])
def test_nobody_but_nodes_reaches_what_they_use(name: str) -> None:
    rules = OBJECTS["NetworkPolicy", name]["spec"]["ingress"]
    allowed = {
        (rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"], port["port"])
        for rule in rules
        for port in rule["ports"]
    }
    ports = {port["name"] for port in PODS[name]["containers"][0]["ports"]}

    assert allowed - {("nats", "routes")} == {("gradwatch", {"nats": "client"}.get(name, name))}
    assert {port for _, port in allowed} <= ports


def nats_addresses() -> list[str]:
    """Return the names under which the servers find each other."""
    return re.findall(r"nats://([\w.-]+):6222", CONF.read_text("utf-8"))


def test_nats_servers_have_the_names_that_all_use() -> None:
    names = nats_addresses()
    aliases = [
        SERVICES[f"nats-{number}"]["networks"]["default"]["aliases"][0] for number in NUMBERS
    ]
    service = SETS["nats"]["serviceName"]

    assert names == aliases == [f"nats-{number}.{service}" for number in NUMBERS]
    for node in (of_compose(0), of_kubernetes(0)):
        assert re.findall(r"([\w.-]+):4222", node.environ["GRADWATCH_CLUSTER"]) == names


SERVERS: Final = """
    number=0
    for name in {names}; do
        number=$((number + 1))
        echo "127.0.1.$number $name" >>/etc/hosts
        # What Debian has is older than that setting.
        sed "/sync_interval/d; s|/data|/tmp/$name|" {conf} >/tmp/$name.conf
        NATS_NAME=${{name%.*}} GRADWATCH_NATS_PASSWORD={nats} nats-server -c /tmp/$name.conf \\
            -a 127.0.1.$number --cluster nats://127.0.1.$number:6222 >>/tmp/log 2>&1 &
    done
    echo '127.0.2.1 postgres' >>/etc/hosts
    mkdir /tmp/pg && chown nobody /tmp/pg && cd /tmp/pg && echo {postgres} >password
    as_nobody='setpriv --reuid=nobody --regid=nogroup --clear-groups'
    $as_nobody {bin}/initdb -D data -U gradwatch --pwfile=password {initdb} >/dev/null
    $as_nobody {bin}/postgres -D data -k '' -h 127.0.2.1 >>/tmp/log 2>&1 &
    ledger=$!
    until_ok {bin}/pg_isready -q -h 127.0.2.1
    PGPASSWORD={postgres} {bin}/createdb -h 127.0.2.1 -U gradwatch gradwatch
"""


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_compose, of_kubernetes])
def test_three_nodes_start_as_the_files_say_and_outlive_the_ledger(
    make: Any, tmp_path: Path
) -> None:
    """They find each other by their names, and ask all others for a token."""
    binaries = Path(program("initdb", "postgresql")).resolve().parent
    program("nats-server", "nats-server")
    nodes: list[Node] = [make(number) for number in NUMBERS]
    servers = SERVERS.format(
        conf=f"/opt/gradwatch/source/{CONF.relative_to(REPOSITORY)}",
        names=" ".join(nats_addresses()),
        bin=binaries,
        initdb=SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"],
        **PASSWORDS,
    )
    starts = "\n".join(start(node, f"127.0.3.{number + 1}") for number, node in enumerate(nodes))
    status = "curl --silent --output /dev/null --write-out '%{http_code}\\n'"
    script = f"""
        install --directory --owner {USER} --mode 0700 /data
        {as_user(USER, *SERVICES["keys"]["entrypoint"])} >/dev/null
        {servers}
        {starts}
        for number in 1 2 3; do
            until_ok curl --silent --fail --output /dev/null http://127.0.3.$number:8420/readyz
        done
        token=$(sed -n 's/^read = "\\(.*\\)"/\\1/p' /data/keys/tokens.toml)
        ask() {{ curl --silent --header "Authorization: Bearer $token" "$@"; }}
        described() {{ ask http://{nodes[0].host}:8420/cluster; }}
        owners() {{ described | grep -o '"[a-z]*-[0-9]-[0-9a-f]*"' | sort -u; }}
        all_own() {{ [[ $(owners | wc -l) == 3 ]]; }}
        until_ok all_own
        {status} http://127.0.3.1:8420/runs
        {status} --header "Authorization: Bearer $token" http://{nodes[2].host}:8420/runs
        kill -KILL $ledger
        unready() {{ [[ $({status} http://127.0.3.1:8420/readyz) == 503 ]]; }}
        until_ok unready
        {status} http://127.0.3.1:8420/healthz
    """

    printed = run_in_machine(script, tmp_path).split()

    assert printed == ["401", "200", "200"]


def start(node: Node, address: str) -> str:
    """Return the lines that start a node as its file does, at an address of its own."""
    arguments = [own.replace("0.0.0.0", address) for own in node.arguments]
    environ = [f"{name}={value}" for name, value in node.environ.items()]
    serve = as_user(USER, *environ, "gradwatch", "serve", *arguments)
    return f"echo {shlex.quote(f'{address} {node.host}')} >>/etc/hosts\n{serve} >>/tmp/log 2>&1 &"
