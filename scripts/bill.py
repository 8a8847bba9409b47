"""Writes what gradwatch[all] is made of: a bill of materials (CycloneDX), and the licences.

What is listed is what .venv has of it, which requirements.lock pins. Nothing in it depends on when
or where it was written.

Usage: bill.py DIST VERSION
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[1]
SPECIFICATION: Final = SchemaVersion.V1_6

_ABOUT: Final = (
    "Of what `pip install 'gradwatch[all]'` brings, by the packages' own metadata, and of uPlot, "
    "which is in the wheel with its licence. Each extra alone brings a part of it."
)

NOT_SHIPPED: Final = {"gradwatch"}
"""Itself."""


def needed(name: str = "gradwatch", extras: frozenset[str] = frozenset({"all"})) -> set[str]:
    """Return the names of all distributions that one needs here, itself among them."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        own = waiting.pop()
        if own in seen:
            continue
        seen.add(own)
        for text in distribution(own[0]).requires or ():
            asked = Requirement(text)
            if _is_asked(asked, own[1]):
                waiting.append((canonicalize_name(asked.name), frozenset(asked.extras)))
    return {name for name, _ in seen}


def _is_asked(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Tell whether a requirement holds here, for these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def vendored() -> dict[str, Any]:
    """Return uPlot, which is in the wheel, as a component."""
    version = json.loads((ROOT / "vendored/package.json").read_text())["dependencies"]["uplot"]
    purl = f"pkg:npm/uplot@{version}"
    return {
        "bom-ref": purl,
        "type": "library",
        "name": "uplot",
        "version": version,
        "purl": purl,
        "licenses": [{"license": {"id": "MIT"}}],
    }


def bill(version: str, names: set[str]) -> str:
    """Return the bill of materials of some distributions, as JSON."""
    made = subprocess.run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"),
            *("--spec-version", SPECIFICATION.to_version(), "--short-PURLs"),
            *("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", sys.executable),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={},  # with SOURCE_DATE_EPOCH it would bear a time
    )
    whole = json.loads(made.stdout)
    uplot = vendored()
    kept = [each for each in whole["components"] if canonicalize_name(each["name"]) in names]
    for each in kept:
        each.pop("externalReferences", None)  # where it was installed from is of this machine
    refs = {each["bom-ref"] for each in kept} | {whole["metadata"]["component"]["bom-ref"]}
    whole["components"] = [*kept, uplot]
    whole["dependencies"] = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in refs]}
        for each in whole["dependencies"]
        if each["ref"] in refs
    ]
    whole["metadata"]["component"]["version"] = version
    _depends_on(whole, uplot["bom-ref"])
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def _depends_on(whole: dict[str, Any], ref: str) -> None:
    """Add what the wheel has in it to what gradwatch depends on."""
    own = whole["metadata"]["component"]["bom-ref"]
    for each in whole["dependencies"]:
        if each["ref"] == own:
            each["dependsOn"] = sorted([*each["dependsOn"], ref])
    whole["dependencies"].append({"ref": ref})


def licences(names: set[str]) -> str:
    """Return a table of the licences of some distributions, and of what is in the wheel."""
    listed = subprocess.run(
        [
            *(sys.executable, "-m", "piplicenses", "--python", sys.executable),
            *("--format", "json", "--with-urls", "--from", "mixed", "--packages", *sorted(names)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [
        (each["Name"], each["Version"], each["License"], each["URL"])
        for each in json.loads(listed.stdout)
    ]
    uplot = vendored()
    rows.append((uplot["name"], uplot["version"], "MIT", "https://github.com/leeoniya/uPlot"))
    lines = [
        "# Licences",
        "",
        _ABOUT,
        "",
        "| package | version | licence | where it is from |",
        "|---|---|---|---|",
        *(f"| {' | '.join(_cell(each) for each in row)} |" for row in sorted(rows)),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:200]


def main() -> None:
    """Write both files."""
    dist, version = Path(sys.argv[1]), sys.argv[2]
    names = needed() - NOT_SHIPPED
    text = bill(version, names)
    fault = JsonStrictValidator(SPECIFICATION).validate_str(text)
    if fault is not None:
        sys.exit(f"the bill of materials is not valid: {fault}")
    components = {canonicalize_name(each["name"]) for each in json.loads(text)["components"]}
    if missing := names - components:
        sys.exit(f"the bill of materials lacks {', '.join(sorted(missing))}")
    (dist / f"gradwatch-{version}.cdx.json").write_text(text, "utf-8")
    table = licences(names)
    (dist / f"gradwatch-{version}-licences.md").write_text(table, "utf-8")
    print(f"bill of materials and licences: {len(components)} components")
    unknown = [line for line in table.splitlines() if "| UNKNOWN |" in line]
    if unknown:
        print("without a licence in their metadata:", *unknown, sep="\n  ")


if __name__ == "__main__":
    main()
