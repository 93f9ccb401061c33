# SPDX-License-Identifier: Apache-2.0
"""The JSON that is written: of the shape that docs/reports.schema.json gives each report, with all keys promised."""

import json
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cfi2sframe import Coverage, Missing, MissingSum
from cfi2sframe.abi import AMD64
from cfi2sframe.report import SCHEMA_VERSION
from tests.support.cli import SECTION, run
from tests.support.contrib import ROOT
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, linked_file, push_fp
from tests.support.jobs import OBJECT, TRUNCATED, object_with_gap
from tests.support.sframe.raw_sframe import RawFunction

SCHEMA: Final[dict[str, Any]] = json.loads((ROOT / "docs" / "reports.schema.json").read_text())
_TYPES: Final = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
_KEYWORDS: Final = {
    *("type", "const", "enum", "properties", "required", "additionalProperties"),
    *("items", "anyOf", "allOf", "$ref", "description"),
}
GOLDEN: Final = sorted((ROOT / "testdata" / "golden").glob("*.o"))
PROMISED: Final[dict[str, set[str]]] = runpy.run_path(str(ROOT / "tools" / "reference.py"))["read_promises"]()
#: Reports of files, by the command that writes them.
REPORTS: Final = {
    "coverage": "coverage GOLDEN plain different missing",
    "coverage-compare": "coverage --compare old new",
    "size": "size GOLDEN plain missing",
    "size-compare": "size --compare old new",
    "audit": "audit GOLDEN wrong.o missing",
    "verify": "verify plain different missing",
    "dump": "dump plain GOLDEN missing",
    "lookup": "lookup different 20000 _ 0",
}


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of a kind of report."""
    found: dict[str, Any] = SCHEMA["$defs"][kind]
    return found


def mismatches(schema: dict[str, Any], value: Any, place: str = "") -> list[str]:  # noqa: ANN401 - JSON
    """Return where a value does not fit a schema, or has keys that it does not have."""
    schema = _resolved(schema)
    assert schema.keys() <= _KEYWORDS, schema
    if "anyOf" in schema:
        found = [mismatches(each, value, place) for each in schema["anyOf"]]
        return [] if [] in found else found[-1]
    types = schema.get("type", [])
    names = [types] if isinstance(types, str) else types
    if names and not any(type(value) is _TYPES[name] for name in names):
        return [f"{place}: {value!r} is none of {names}"]
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return [f"{place}: {value!r}"]
    if isinstance(value, list):
        return [text for item in value for text in mismatches(schema.get("items", {}), item, f"{place}[]")]
    if not isinstance(value, dict):
        return []
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    missing = [f"{place}: no {key}" for key in schema.get("required", ()) if key not in value]
    unknown = [f"{place}: unknown {key}" for key in value if key not in properties and others is None]
    inner = ((key, properties.get(key, others)) for key in value)
    wrong = [text for key, each in inner if each for text in mismatches(each, value[key], f"{place}.{key}")]
    return missing + unknown + wrong


def properties_in(schema: dict[str, Any]) -> set[str]:
    """Return the names of all keys that a schema has."""
    schema = _resolved(schema)
    parts = [*schema.get("anyOf", ()), *schema.get("properties", {}).values()]
    parts += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    return {*schema.get("properties", {})}.union(*map(properties_in, parts))


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without a reference, and with its parts that all have to hold as one."""
    if "$ref" in schema:
        return {**schema_of(schema["$ref"].removeprefix("#/$defs/")), **{k: schema[k] for k in schema if k != "$ref"}}
    parts = list(map(_resolved, schema.get("allOf", ())))
    if not parts:
        return schema
    return {
        "properties": {key: each for part in parts for key, each in part["properties"].items()},
        "required": [key for part in parts for key in part["required"]],
    }


def keys_of(data: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the keys of all objects in some data."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from keys_of(value)
    elif isinstance(data, list):
        for item in data:
            yield from keys_of(item)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of which each report has something to tell."""
    folder = tmp_path_factory.mktemp("json")
    assert run("/bin/ls", "-o", folder / "plain").status == 0
    for name, data in (("old/a.o", OBJECT), ("new/a.o", object_with_gap()), ("new/cut.o", TRUNCATED)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    # The offset of the CFA after the push: 16 becomes 24.
    push = (GOLDEN[0].parent / "amd64-push-rbp.o").read_bytes()
    (folder / "wrong.o").write_bytes(push.replace(b"A\x0e\x10", b"A\x0e\x18"))
    wrong = SECTION._replace(functions=(RawFunction(TEXT_VADDR, 16),))
    sframe = asm.Section(".sframe", wrong.assemble(), 0x6FFFFFF4, 2, wrong.vaddr, align=8)
    broken = asm.Section(".debug_frame", b"\xff" * 8, 1)
    (folder / "different").write_bytes(linked_file(AMD64, (push_fp(AMD64),), more=(sframe, broken)))
    return folder


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_has_the_shape_and_all_keys(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = [name for word in REPORTS[kind].split() for name in (GOLDEN if word == "GOLDEN" else [word])]
    check(kind, json.loads(run(*words, "--format", "json").out))


def check(kind: str, *reports: dict[str, Any]) -> None:
    """Check that reports have their shape and, together, all keys of it."""
    for report in reports:
        assert mismatches(schema_of(kind), report) == []
        assert report["schema"] == SCHEMA_VERSION
    assert properties_in(schema_of(kind)) - set(keys_of(list(reports))) == set()


def test_lines_of_report(folder: Path, tmp_path: Path) -> None:
    """`convert` and `remove` write the account of `coverage` in them."""
    for name, source in (("gap.o", "new/a.o"), ("wrong.o", "wrong.o")):
        (tmp_path / name).write_bytes((folder / source).read_bytes())
    report = tmp_path / "report"
    lines: list[dict[str, Any]] = []
    for words in (("--in-place", tmp_path, tmp_path / "gap.o", "missing"), ("remove", "--check", tmp_path / "gap.o")):
        run(*words, "--for", "ld", "--report", report) if words[0] != "remove" else run(*words, "--report", report)
        lines += map(json.loads, report.read_text().splitlines())
    assert {line["status"] for line in lines} == {"converted", "failed", "would remove"}
    unread = properties_in(schema_of("coverage")) & {"name"}
    for line in lines:
        assert mismatches(schema_of("report"), line) == []
    assert properties_in(schema_of("report")) - set(keys_of(lines)) == unread
    run("verify", folder / "plain", folder / "different", folder / "new/a.o", "--report", report)
    check("verify-report", *map(json.loads, report.read_text().splitlines()))


def test_traces() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        try:
            result = run("trace", "--pid", str(process.pid), "--format", "json")
            # Before the program's first instruction, there may be no row.
            for _ in range(100):
                if b'"kind"' not in result.out and not result.err:
                    result = run("trace", "--pid", str(process.pid), "--format", "json")
        finally:
            process.kill()
    if "permit" in " ".join(result.err):
        pytest.skip(result.err[-1])
    death = {"signal": 11, "code": 1, "address": 0, "thread_id": 1, "command": "program"}
    core = {"schema": SCHEMA_VERSION, "file": "core", "machine": "AMD64", "threads": [], "warning": "", "death": death}
    check("trace", json.loads(result.out), core)
    recording = ROOT / "testdata" / "perf"
    result = run("trace", recording / "program.data", "--sysroot", recording / "root", "--format", "json")
    check("trace-recording", json.loads(result.out))


@pytest.mark.parametrize("kind", [each["$ref"].removeprefix("#/$defs/") for each in SCHEMA["anyOf"]])
def test_promised_keys_are_in_the_schema(kind: str) -> None:
    """A key that goes away breaks scripts of users, and raises the schema."""
    assert PROMISED[f"keys of {kind}"] == properties_in(schema_of(kind))


def test_fields_of_coverage_are_its_keys() -> None:
    assert {*Coverage._fields, *Missing._fields, *MissingSum._fields} <= PROMISED["keys of coverage"]


@pytest.mark.parametrize(
    "change", [{"schema": 3}, {"files": {}}, {"files": [{"file": "a"}]}, {"failures": [{"file": 1}]}, {"more": 1}]
)
def test_another_shape_is_seen(change: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"schema": SCHEMA_VERSION, "files": [], "failures": []}
    assert mismatches(schema_of("coverage"), plain) == []
    assert mismatches(schema_of("coverage"), plain | change) != []
