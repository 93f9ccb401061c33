# SPDX-License-Identifier: Apache-2.0
"""The programs that tools/step.py steps through, built from what tools/fetch-step brought: code that has no CFI.

Each builder returns its runs, or raises `MissingError` with what it lacks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOURCES: Final = Path(__file__).resolve().parent / "stepping"
#: Of each function so many calls are stepped, and of each call so many instructions.
ENOUGH: Final = ("-c", "6", "-i", "3000")
#: The same for programs that make millions of calls.
MANY: Final = (*ENOUGH, "-w", "300")
ALL: Final = ("-a",)
DAV1D_MASKS: Final = ("sse2", "ssse3", "sse41", "avx2", "avx512icl")
OPENBLAS_CORES: Final = (
    *("Prescott", "Core2", "Nehalem", "Barcelona", "Sandybridge", "Haswell", "Zen", "SkylakeX"),
    *("Bobcat", "Atom", "Dunnington", "Penryn", "Opteron"),
)
X265_MASKS: Final = ("AVX512", "AVX2", "AVX", "SSE4")
X265_PARTS: Final = ("pixel", "transforms", "interp", "intrapred")
X264_PRESETS: Final = ("ultrafast", "medium", "veryslow")
#: What this machine has to have for the masks and cores above; the others run everywhere.
_NEEDED_FLAGS: Final = {
    "avx2": "avx2",
    "avx512icl": "avx512_vbmi2",
    "Sandybridge": "avx",
    "Haswell": "avx2",
    "Zen": "avx2",
    "SkylakeX": "avx512vl",
    "Barcelona": "sse4a",
    "Opteron": "3dnow",
    "AVX512": "avx512vbmi",
    "AVX2": "avx2",
    "AVX": "avx",
}


class MissingError(Exception):
    """Something that a program needs cannot be had here."""


class Run(NamedTuple):
    """A program to be stepped, and the file whose code is compared."""

    name: str
    subject: Path
    words: tuple[str | Path, ...]
    limits: tuple[str, ...] = ENOUGH
    variables: tuple[tuple[str, str], ...] = ()


class Kit(NamedTuple):
    """Where things are: what was fetched, and where programs are built."""

    folder: Path

    @property
    def root(self) -> Path:
        """The unpacked packages."""
        return self.folder / "root"

    @property
    def libraries(self) -> Path:
        """The packages' libraries."""
        return self.root / "usr" / "lib" / "x86_64-linux-gnu"

    def source(self, package: str) -> Path:
        """Return a package's unpacked source."""
        found = sorted(path for path in (self.folder / "src").glob(f"{package}-*") if path.is_dir())
        if not found:
            raise MissingError(f"no source of {package}")
        return found[0]

    def has(self, *names: Path) -> None:
        """Raise `MissingError` unless these files exist."""
        for name in names:
            if not name.exists():
                raise MissingError(f"no {name.name}")

    def build(self, *words: str | Path, cwd: Path | None = None) -> None:
        """Run a command with the fetched programs first in PATH; its output is kept in build.log."""
        if shutil.which(words[0]) is None:
            raise MissingError(f"no {words[0]}")
        path = f"{self.root / 'usr' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, **self.variables(), "PATH": path}
        with (self.folder / "build.log").open("ab") as log:
            done = subprocess.run(words, check=False, cwd=cwd, stdout=log, stderr=log, env=variables)
        if done.returncode != 0:
            raise MissingError(f"{Path(words[0]).name} failed, see {log.name}")

    def variables(self) -> dict[str, str]:
        """Return what programs of the packages need to find their libraries."""
        return {"LD_LIBRARY_PATH": f"{self.libraries}{os.pathsep}{self.libraries / 'openblas-pthread'}"}


def machine_has(name: str) -> bool:
    """Whether this machine's processor has what a CPU mask of dav1d or a core type of OpenBLAS needs."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return name not in _NEEDED_FLAGS or _NEEDED_FLAGS[name] in flags.split()


def dav1d_checkasm(kit: Kit) -> list[Run]:
    """dav1d's test of its assembly, one run for each of its parts."""
    program = kit.folder / "dav1d" / "tests" / "checkasm"
    if not program.exists():
        kit.build("meson", "setup", "--buildtype=release", kit.folder / "dav1d", kit.source("dav1d"))
        kit.build("ninja", "-C", kit.folder / "dav1d", "tests/checkasm")
    tests = subprocess.run([program, "--list-tests"], check=True, capture_output=True, text=True).stdout.split()
    return [Run(f"dav1d checkasm {test}", program, (program, "1", f"--test={test}")) for test in tests]


def x264_checkasm(kit: Kit) -> list[Run]:
    """x264's test of its assembly, for 8 and 10 bits."""
    folder = kit.folder / "x264"
    programs = [folder / f"checkasm{depth}" for depth in (8, 10)]
    if not programs[-1].exists():
        folder.mkdir(exist_ok=True)
        without = [f"--disable-{name}" for name in ("lavf", "swscale", "ffms", "gpac", "lsmash", "opencl")]
        kit.build(kit.source("x264") / "configure", "--enable-static", "--enable-debug", *without, cwd=folder)
        kit.build("make", *(program.name for program in programs), cwd=folder)
    return [Run(f"x264 {program.name}", program, (program, "1"), MANY) for program in programs]


def x265_testbench(kit: Kit) -> list[Run]:
    """x265's test of its assembly."""
    program = kit.folder / "x265" / "test" / "TestBench"
    if not program.exists():
        options = ("-DENABLE_TESTS=ON", "-DENABLE_SHARED=OFF", "-DENABLE_CLI=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1")
        source, folder = kit.source("x265") / "source", program.parents[1]
        # Each function is called a hundred times with other data, and thousands of times to measure its speed.
        for header in (source / "test").glob("*harness.h"):
            text = header.read_text().replace("BENCH_RUNS 2000", "BENCH_RUNS 4")
            header.write_text(re.sub(r"ITERS = 1\d\d\b", "ITERS = 8", text))
        kit.build("cmake", "-G", "Ninja", "-S", source, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *options)
        kit.build("ninja", "-C", folder, "TestBench")
    # A name means that instruction set and all before it; without one, AVX-512 is left out.
    mask = next(mask for mask in X265_MASKS if machine_has(mask))
    words = (program, "--cpuid", mask, "--testbench")
    return [Run(f"x265 TestBench {part}", program, (*words, part), MANY) for part in X265_PARTS]


def dav1d_decode(kit: Kit) -> list[Run]:
    """The distribution's libdav1d decodes a clip with film grain, with each of its instruction sets."""
    clip = make_clip(kit)
    program, library = kit.root / "usr" / "bin" / "dav1d", kit.libraries / "libdav1d.so.6"
    kit.has(program, library)
    words = (program, "-q", "-i", clip, "-o", os.devnull, "--muxer", "yuv", "--threads", "1", "--cpumask")
    return [Run(f"libdav1d {mask}", library, (*words, mask)) for mask in DAV1D_MASKS if machine_has(mask)]


def make_clip(kit: Kit, frames: int = 10) -> Path:
    """Make a clip of AV1 from a moving pattern."""
    clip, raw = kit.folder / f"clip-{frames}.ivf", kit.folder / "clip.y4m"
    encoder = kit.root / "usr" / "bin" / "SvtAv1EncApp"
    kit.has(encoder)
    if not clip.exists():
        width, height = 176, 144
        with raw.open("wb") as out:
            out.write(b"YUV4MPEG2 W%d H%d F25:1 C420\n" % (width, height))
            for frame in range(frames):
                pixels = range(width * height)
                out.write(b"FRAME\n")
                out.write(bytes((at % width + 3 * frame) * (at // width + frame) >> 5 & 255 for at in pixels))
                out.write(bytes((at * 7 + frame * 11) & 255 for at in pixels[: width * height // 4]) * 2)
        kit.build(encoder, "-i", raw, "-b", clip, "--preset", "6", "--film-grain", "10")
    return clip


def x264_encode(kit: Kit) -> list[Run]:
    """The distribution's libx264 encodes a few frames."""
    library, program = kit.libraries / "libx264.so.164", kit.folder / "x264-encode"
    kit.has(library, kit.folder / "x264" / "x264_config.h")
    headers = (f"-I{kit.source('x264')}", f"-I{kit.folder / 'x264'}")
    kit.build("cc", "-O1", *headers, "-o", program, SOURCES / "x264.c", library)
    return [Run(f"libx264 {preset}", library, (program, preset)) for preset in X264_PRESETS]


def openblas(kit: Kit) -> list[Run]:
    """The distribution's OpenBLAS with the kernels of several processors."""
    library = kit.libraries / "openblas-pthread" / "libopenblas.so.0"
    kit.has(library)
    program = build_blas(kit)
    return [
        Run(
            f"OpenBLAS {core}",
            library,
            (program,),
            variables=(("OPENBLAS_NUM_THREADS", "1"), ("OPENBLAS_CORETYPE", core)),
        )
        for core in OPENBLAS_CORES
        if machine_has(core)
    ]


def build_blas(kit: Kit) -> Path:
    """Build the program that calls BLAS routines."""
    library, program = kit.libraries / "openblas-pthread" / "libopenblas.so.0", kit.folder / "blas"
    kit.has(library)
    kit.build("cc", "-O1", "-o", program, SOURCES / "blas.c", library, "-Wl,--allow-shlib-undefined")
    return program


def musl(kit: Kit) -> list[Run]:
    """Programs of musl, static and dynamic, with threads and without: every instruction is stepped."""
    library = kit.root / "lib" / "ld-musl-x86_64.so.1"
    kit.has(library)
    static = build_musl(kit, "cc", kit.root, "x86_64", kit.folder / "musl-static")
    dynamic = build_musl(kit, "cc", kit.root, "x86_64", kit.folder / "musl-dynamic", library)
    runs = []
    for program, subject in ((static, static), (dynamic, library.resolve())):
        runs.append(Run(program.name, subject, (program,), ALL))
        runs.append(Run(f"{program.name} with threads", subject, (program, "threads"), ALL))
    return runs


def build_musl(kit: Kit, compiler: str, root: Path, machine: str, program: Path, library: Path | None = None) -> Path:
    """Build a program with the musl of some unpacked packages: a static one, or one for a library that loads itself."""
    folder = root / "usr" / "lib" / f"{machine}-linux-musl"
    kit.has(folder / "libc.a")
    includes = ("-isystem", root / "usr" / "include" / f"{machine}-linux-musl", "-isystem", _of_cc(compiler, "include"))
    options = ("-O2", "-fno-stack-protector", "-nostdlib", "-nostdinc", *includes, "-o", program)
    start, gcc = (folder / "crti.o", SOURCES / "musl.c"), _of_cc(compiler, "libgcc.a")
    if library is None:
        rest = ("-Wl,--start-group", folder / "libc.a", gcc, "-Wl,--end-group", folder / "crtn.o")
        kit.build(compiler, *options, "-static", "-no-pie", folder / "crt1.o", *start, *rest)
    else:
        loader = f"-Wl,-dynamic-linker,{library}"
        kit.build(
            compiler, *options, "-fPIE", "-pie", loader, folder / "Scrt1.o", *start, library, gcc, folder / "crtn.o"
        )
    return program


def _of_cc(compiler: str, name: str) -> Path:
    """Return a file or folder of a compiler's own."""
    if shutil.which(compiler) is None:
        raise MissingError(f"no {compiler}")
    words = [compiler, f"-print-file-name={name}"]
    return Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())


GROUPS: Final[dict[str, Callable[[Kit], Sequence[Run]]]] = {
    "dav1d-checkasm": dav1d_checkasm,
    "x264-checkasm": x264_checkasm,
    "x265-testbench": x265_testbench,
    "dav1d": dav1d_decode,
    "x264": x264_encode,
    "openblas": openblas,
    "musl": musl,
}
