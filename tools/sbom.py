# SPDX-License-Identifier: Apache-2.0
"""A bill of materials for built archives: CycloneDX 1.6 as JSON, the same bytes for the same archives.

It names the program, its licence, both archives with their hashes, and what they need to run, each with the versions
that will do: archives hold nothing that others wrote. What development needs is in requirements/.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zipfile
from datetime import UTC, datetime
from email.parser import Parser
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

#: Extras for those who use the program; the others are for its development.
EXTRAS: Final = ("zstd", "html")
_REQUIREMENT: Final = re.compile(r"([\w.-]+)\s*([^;\s]*)\s*(?:;\s*extra == ['\"](\w+)['\"])?")


class Dependency(NamedTuple):
    """What the program needs: `versions` as in `>=0.31`; `extras` that ask for it, none if it is always needed."""

    name: str
    versions: str
    extras: tuple[str, ...]


def write_bill(sdist: Path, wheel: Path, epoch: int) -> Path:
    """Write the bill beside the sdist, with a time in seconds since 1970, and return its path."""
    metadata = _metadata(wheel)
    path = sdist.parent / f"{metadata['Name']}-{metadata['Version']}.cdx.json"
    path.write_text(json.dumps(_bill(metadata, (sdist, wheel), epoch), indent=2, sort_keys=True) + "\n")
    return path


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def dependencies(metadata: Message) -> list[Dependency]:
    """Return what users need of a package's metadata, in the order of the names."""
    found: dict[tuple[str, str], set[str]] = {}
    for text in metadata.get_all("Requires-Dist", []):
        match = _REQUIREMENT.fullmatch(text)
        # What development needs may have other conditions, too.
        if match and (match[3] is None or match[3] in EXTRAS):
            found.setdefault((match[1], match[2]), set()).add(match[3] or "")
    return [
        Dependency(name, versions, () if "" in extras else tuple(sorted(extras)))
        for (name, versions), extras in sorted(found.items())
    ]


def _bill(metadata: Message, archives: tuple[Path, ...], epoch: int) -> dict[str, Any]:
    name, version = metadata["Name"], metadata["Version"]
    reference = f"pkg:pypi/{name}@{version}"
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in archives}
    needed = dependencies(metadata)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, " ".join((reference, *digests.values()))).urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": reference,
                "purl": reference,
                "name": name,
                "version": version,
                "description": metadata["Summary"],
                "licenses": [{"license": {"id": metadata["License-Expression"]}}],
                "components": [
                    {"type": "file", "name": file_name, "hashes": [{"alg": "SHA-256", "content": digest}]}
                    for file_name, digest in digests.items()
                ],
            },
        },
        "components": [_component(each) for each in needed],
        "dependencies": [
            {"ref": reference, "dependsOn": [_reference(each) for each in needed]},
            *({"ref": _reference(each)} for each in needed),
        ],
    }


def _reference(dependency: Dependency) -> str:
    return f"pkg:pypi/{dependency.name}"


def _component(dependency: Dependency) -> dict[str, Any]:
    properties = [("versions", dependency.versions), *(("extra", extra) for extra in dependency.extras)]
    return {
        "type": "library",
        "bom-ref": _reference(dependency),
        "purl": _reference(dependency),
        "name": dependency.name,
        "scope": "optional" if dependency.extras else "required",
        "properties": [{"name": f"cfi2sframe:{key}", "value": value} for key, value in properties if value],
    }
