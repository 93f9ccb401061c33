# SPDX-License-Identifier: Apache-2.0
"""Where a section goes: unused bytes, a segment on a page of its own, and never where a program's heap would move."""

from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PT_LOAD
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import place
from cfi2sframe.placing.linked import plan_insertion
from tests.support.needs import attempt, need, run
from tests.support.placing.embedded import KINDS, LARGE, LINKERS, SMALL, check_program, compiled, embed, linked_program

FIXED = ("nopie", "static")


def heap_program(kind: str) -> Path:
    """Return heap.c linked to a kind."""
    flags = [flag for flag in KINDS[kind] if not flag.startswith("-D")]
    return compiled("heap.c", "-Wl,-z,separate-code", *flags)


def saved_image(folder: Path, kind: str) -> Path:
    """Return heap.c with its .bss in the file, as if it were saved with its heap; it checks where its heap is."""
    image = folder / "image"
    flags = [f"--set-section-flags={name}=alloc,load,contents" for name in (".bss", "__libc_freeres_ptrs")]
    run(need("objcopy"), *flags, heap_program(kind), image)
    if attempt(image).status == 2:
        pytest.skip("address randomization cannot be turned off here (a container's seccomp filter)")
    assert attempt(image).status == 0
    return image


@pytest.mark.parametrize("kind", FIXED)
def test_the_heap_of_a_saved_image_stays_where_it_was(tmp_path: Path, kind: str) -> None:
    plan = embed(saved_image(tmp_path, kind), tmp_path / "converted", SMALL)
    assert "unused bytes" in plan.description
    assert attempt(tmp_path / "converted").status == 0


@pytest.mark.parametrize("kind", FIXED)
def test_refused_where_the_heap_of_a_saved_image_would_move(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    image = saved_image(tmp_path, kind)
    with pytest.raises(EmbedError, match="it may be an image saved with its heap"):
        embed(image, tmp_path / "converted", LARGE)
    monkeypatch.setattr(place, "may_be_saved_image", lambda _file: False)
    if kind == "nopie":
        # The judge sees what the dynamic loader knows.
        with pytest.raises(EmbedError, match="the heap starts elsewhere"):
            embed(image, tmp_path / "converted", LARGE)
    else:
        embed(image, tmp_path / "converted", LARGE)
        assert attempt(tmp_path / "converted").status == 1


def test_other_programs_get_a_new_segment(tmp_path: Path) -> None:
    """A program with .bss is no saved image, whatever it calls: the drivers of GCC 16 call `personality` and `sbrk`."""
    for program in (*map(heap_program, ("pie", *FIXED)), linked_program("bfd", "nopie")):
        assert "new read-only segment" in embed(program, tmp_path / "converted", LARGE).description


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_a_new_segment_begins_on_a_page(tmp_path: Path, linker: str, kind: str) -> None:
    """OpenJDK's reader of core dumps compares its size in pages with that of the mapping, where it is read-only."""
    original = linked_program(linker, kind, "stripped")
    embed(original, tmp_path / "converted", LARGE)
    before, after = (
        [s for s in load(str(p)).segments if s.type == PT_LOAD] for p in (original, tmp_path / "converted")
    )
    if linker in ("lld", "mold") and kind == "static":
        # It may look for its headers at the start of the file: they have to stay, and have room for one more.
        assert len(after) == len(before)
        return
    assert len(after) == len(before) + 1
    assert after[-1].file_offset % 4096 == after[-1].vaddr % 4096 == 0


def test_unused_bytes_rather_than_a_new_segment(tmp_path: Path) -> None:
    """What would move does not fit there too; without the PT_NOTE that repeats PT_GNU_PROPERTY, nothing moves."""
    original = linked_program()
    data = original.read_bytes()
    sizes = range(4096, 0, -32)
    size = next(size for size in sizes if "unused bytes" in plan_insertion(data, size).description)
    plan = check_program(original, tmp_path, size)
    assert not plan.moved
    assert "the PT_NOTE that repeats PT_GNU_PROPERTY is gone" in plan.description
