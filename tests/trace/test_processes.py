# SPDX-License-Identifier: Apache-2.0
"""Live processes that are stopped, busy, crowded or gone: each is traced or refused, and left as it was.

Files are found where the process sees them, also from another root directory or in a container.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.errors import InputError
from cfi2sframe.trace import (
    AddressSpace,
    Ending,
    FileMapping,
    FileStore,
    Memory,
    Snapshot,
    Traced,
    live,
    trace_process,
)
from cfi2sframe.trace.beyond import BEYOND
from cfi2sframe.trace.live import Process, stopped_threads
from cfi2sframe.trace.store import ModuleFile
from tests.support import cli
from tests.support.needs import need, run
from tests.support.placing.embedded import linked_of
from tests.support.trace.judges import functions_of

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.uname().machine != "x86_64",
        reason="traces processes of Linux on AMD64",
    ),
]

#: Prints "ready" where it is to be traced, then waits for the end of its input.
DEEP = """
#include <stdio.h>
#include <unistd.h>
#include <string.h>
static int dive(int depth) {
  char room[4096];
  memset(room, depth, sizeof room);
  __asm__ volatile("" : : "r"(room) : "memory");
  if (depth == 0) { char c; puts("ready"); fflush(stdout); return read(0, &c, 1); }
  return dive(depth - 1) + room[5];
}
int main(void) { return dive(5000) & 1; }
"""
#: A function without CFI: it pushes, calls, subtracts, and calls again.
WITHOUT_CFI = """
#include <stdio.h>
#include <unistd.h>
__asm__(".globl through; .type through, @function; through: push %rbx; mov %rdi, %rbx; sub $48, %rsp;"
        "call *%rbx; add $48, %rsp; pop %rbx; ret; .size through, .-through");
void through(void (*function)(void));
static void waiting(void) { char c; puts("ready"); fflush(stdout); if (read(0, &c, 1) < 0) _exit(1); }
int main(void) { through(waiting); return 0; }
"""
#: A signal returns through code without CFI.
RESTORES = """
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
__asm__("nop; .type restore, @function; restore: mov $15, %rax; syscall; .size restore, .-restore");
void restore(void);
static void handler(int number) { char c; puts("ready"); fflush(stdout); if (read(0, &c, 1) < 0) _exit(number); }
int main(void) {
  struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; } action
    = {handler, 0x04000000, restore, 0};
  syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
  return raise(SIGUSR1);
}
"""
CHANGES_ROOT = """
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
  char c;
  if (count < 2 || chroot(words[1]) || chdir("/")) return 1;
  puts("ready");
  fflush(stdout);
  return read(0, &c, 1) & 1;
}
"""


@pytest.fixture(scope="module")
def store() -> FileStore:
    """What is converted for one test serves the others."""
    return FileStore()


@contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program from when it prints that it is ready."""
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                pytest.skip(f"{words[0]} does not run here")
            yield process
        finally:
            process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of three threads that wait."""
    script = (
        "import sys, threading\n"
        "lock = threading.Lock(); lock.acquire()\n"
        "for _ in range(2): threading.Thread(target=lock.acquire, daemon=True).start()\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    with running(sys.executable, "-c", script) as process:
        yield process


def compiled(source: str, folder: Path, *flags: str) -> Path:
    return linked_of(folder, source, "-fomit-frame-pointer", *flags)


def traced_or_skip(pid: int, store: FileStore) -> Traced:
    """Trace a process; where the machine forbids that for all, there is nothing to test."""
    try:
        return trace_process(pid, store=store)
    except InputError as error:
        if "not permitted" in str(error):
            pytest.skip(str(error))
        raise


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def wait_for_state(pid: int, states: str) -> str:
    deadline = time.monotonic() + 10
    while (state := state_of(pid)) not in states and time.monotonic() < deadline:
        time.sleep(0.01)
    return state


def test_all_threads_and_one(sleeper: subprocess.Popen[bytes], store: FileStore) -> None:
    traced = traced_or_skip(sleeper.pid, store)
    ids = [thread.thread_id for thread in traced.threads]
    assert len(ids) == 3
    assert ids[0] == sleeper.pid
    assert {thread.ending.kind for thread in traced.threads} == {"outermost"}
    one = trace_process(sleeper.pid, thread=ids[2], store=store)
    assert [thread.thread_id for thread in one.threads] == [ids[2]]
    # A wait that was interrupted begins again: the inner frames may have moved, the outer ones have not.
    outer = [[e.frame[:2] for e in t.entries[-4:]] for t in (one.threads[0], traced.threads[2])]
    assert outer[0] == outer[1]
    assert len(outer[0]) == 4
    with pytest.raises(InputError, match="no thread 1 in this process"):
        trace_process(sleeper.pid, thread=1, store=store)
    assert wait_for_state(sleeper.pid, "S") == "S"


def test_a_busy_process_receives_its_signals(store: FileStore) -> None:
    """Signals that arrive while it is traced over and over are neither lost nor doubled."""
    script = (
        "import signal, sys\ncount = 0\n"
        "def handler(*_):\n    global count\n    count += 1\n"
        "signal.signal(signal.SIGUSR1, handler)\nprint('ready', flush=True)\n"
        "while count < 40:\n    for n in range(100): str(n)\n"
        "print(count, flush=True)\nsys.stdin.read()\nprint(count, flush=True)\n"
    )
    with running(sys.executable, "-c", script) as process:
        for _ in range(40):
            os.kill(process.pid, signal.SIGUSR1)
            for thread in traced_or_skip(process.pid, store).threads:
                assert thread.ending.kind in ("outermost", "no-row", "unknown-register")
            # Signals of a kind do not queue: the next may come when this one has been taken.
            deadline = time.monotonic() + 10
            while _pending(process.pid) and time.monotonic() < deadline:
                time.sleep(0.001)
        out, _ = process.communicate(b"", timeout=30)
        assert out.split() == [b"40", b"40"]


def _pending(pid: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":", 1) for line in file)
    return any(int(fields[name], 16) for name in ("SigPnd", "ShdPnd"))


def test_a_stack_larger_than_a_copy(tmp_path: Path, store: FileStore) -> None:
    """20 MB of frames: the process is stopped again for what the first copy lacks."""
    shell = 'ulimit -s unlimited 2>/dev/null || ulimit -s 65536; exec "$0"'
    with running("sh", "-c", shell, compiled(DEEP, tmp_path)) as process:
        traced = traced_or_skip(process.pid, store)
    names = functions_of(traced, traced.threads[0])
    assert (names.count("dive"), names[-1]) == (5001, "_start")
    assert traced.threads[0].ending.kind == "outermost"


def test_the_vdso_is_read_from_memory(sleeper: subprocess.Popen[bytes], store: FileStore) -> None:
    traced_or_skip(sleeper.pid, store)
    with closing(Process(sleeper.pid)) as process:
        space = AddressSpace(process.copy(), store)
        start = space.snapshot.auxv[33]
        module = space.module_at(start)
    assert module is not None
    assert module.file is not None, module.note
    assert (module.name, module.start, module.bias, module.file.source) == ("[vdso]", start, start, "converted")
    (vaddr,) = [vaddr for vaddr, _, name in module.file.functions if name == "__vdso_gettimeofday"]
    assert space.symbol_at(start + vaddr + 1) == ("__vdso_gettimeofday", 1)
    assert not isinstance(space.find(start + vaddr), Ending)


def test_processes_that_cannot_be_traced(sleeper: subprocess.Popen[bytes], store: FileStore) -> None:
    traced_or_skip(sleeper.pid, store)
    # ptrace belongs to the thread that has seized, so the tracer is another process.
    script = (
        f"import sys\nsys.path.insert(0, {str(cli.ROOT)!r})\nfrom cfi2sframe.trace.live import stopped_threads\n"
        f"with stopped_threads({sleeper.pid}):\n    print('ready', flush=True)\n    sys.stdin.read()\n"
    )
    with running(sys.executable, "-c", script):
        done = cli.run("trace", "--pid", str(sleeper.pid))
        assert (done.status, done.out, len(done.err)) == (3, b"", 1)
        assert done.err[0].startswith(f"cfi2sframe: process {sleeper.pid}: error: Operation not permitted: ")
    # The kernel detaches a tracer that dies.
    assert wait_for_state(sleeper.pid, "S") == "S"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    try:
        assert wait_for_state(gone.pid, "Z") == "Z"
        with pytest.raises(InputError, match="no such process"):
            trace_process(gone.pid, store=store)
    finally:
        gone.wait()
    with pytest.raises(InputError, match="no such process"):
        trace_process(gone.pid, store=store)


def test_an_error_resumes_the_threads(sleeper: subprocess.Popen[bytes], store: FileStore) -> None:
    traced_or_skip(sleeper.pid, store)

    def interrupted() -> None:
        with stopped_threads(sleeper.pid) as stopped:
            assert len(stopped) == 3
            assert wait_for_state(sleeper.pid, "t") == "t"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert wait_for_state(sleeper.pid, "S") == "S"


def test_registers_of_another_kind(
    sleeper: subprocess.Popen[bytes], store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives fewer bytes for a program of 32 bits."""
    traced_or_skip(sleeper.pid, store)
    monkeypatch.setattr(live, "_registers", lambda _thread, _kind: bytes(68))
    with pytest.raises(InputError, match=f"thread {sleeper.pid}: its registers cannot be read, or it is no 64-bit"):
        trace_process(sleeper.pid, store=store)
    assert wait_for_state(sleeper.pid, "S") == "S"


def test_a_parent_that_waits_for_its_vfork_child(
    tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be stopped: an error, soon, and the process goes on as before."""
    monkeypatch.setattr(live, "_STOP_SECONDS", 0.5)
    source = """
    #include <stdio.h>
    #include <unistd.h>
    int main(void) {
      puts("ready"); fflush(stdout);
      if (vfork() == 0) { char c; if (read(0, &c, 1) < 0) _exit(2); _exit(0); }
      puts("on"); fflush(stdout);
      return 0;
    }
    """
    with running(compiled(source, tmp_path)) as process:
        assert wait_for_state(process.pid, "D") == "D"
        with pytest.raises(InputError, match=r"does not stop|not permitted"):
            trace_process(process.pid, store=store)
        out, _ = process.communicate(b"x", timeout=20)
        assert (out, process.returncode) == (b"on\n", 0)


def test_a_cfa_that_no_row_can_hold_is_followed_and_marked(tmp_path: Path, store: FileStore) -> None:
    """As in OpenSSL's assembly: the caller's SP is on the stack, and so are FP and others."""
    cfi = (
        ".cfi_startproc; push %rbp; .cfi_def_cfa_offset 16; .cfi_offset 6, -16; mov %rsp, %rax; mov $77, %ebp;"
        "sub $72, %rsp; mov %rax, 40(%rsp); .cfi_escape 0x0f,5,0x77,40,0x06,0x23,16; call *%rdi;"
        " add $72, %rsp; .cfi_def_cfa 7, 16;"
        "pop %rbp; .cfi_def_cfa_offset 8; ret; .cfi_endproc"
    )
    begin, end = WITHOUT_CFI.index("push %rbx"), WITHOUT_CFI.index("; .size")
    with running(compiled(WITHOUT_CFI[:begin] + cfi.replace("; ", '; "\n"') + WITHOUT_CFI[end:], tmp_path)) as process:
        traced = traced_or_skip(process.pid, store)
        alone = trace_process(process.pid, store=FileStore(only_sections=True))
    (thread,) = traced.threads
    names = functions_of(traced, thread)
    assert names[names.index("waiting") :][:3] == ["waiting", "through", "main"]
    assert thread.ending.kind == "outermost"
    assert [entry.is_beyond_rows for entry in thread.entries] == [name == "through" for name in names]
    place = thread.entries[names.index("through")].frame
    assert traced.space.find(place.lookup_pc) == Ending("no-row", BEYOND)
    (line,) = [line for line in str(traced).splitlines() if " through+" in line]
    assert "(v3 default, CFI alone)" in line
    assert {thread.ending.kind for thread in alone.threads} == {"unusable-module"}


def test_only_with_rows_from_code_the_trace_goes_on(tmp_path: Path, store: FileStore) -> None:
    with running(compiled(WITHOUT_CFI, tmp_path)) as process:
        traces = [traced_or_skip(process.pid, files) for files in (store, FileStore(source="code"))]
    names, more = (functions_of(traced, traced.threads[0]) for traced in traces)
    assert [traced.threads[0].ending.kind for traced in traces] == ["no-row", "outermost"]
    assert names[-2:] == ["waiting", "through"]
    assert more[more.index("waiting") :][:3] == ["waiting", "through", "main"]


@pytest.mark.parametrize("change", ["convert", "delete", "replace"])
def test_files_that_were_replaced_while_they_ran(tmp_path: Path, change: str) -> None:
    """Program and library are found by the process's own links; another file at the path is not taken for them."""
    (tmp_path / "lib.c").write_text('void through(void (*f)(void)) { f(); __asm__ volatile(""); }')
    flags = ("-shared", "-fPIC", "-O1", "-fomit-frame-pointer")
    run(need("gcc"), *flags, "-o", tmp_path / "lib.so", tmp_path / "lib.c")
    source = WITHOUT_CFI.replace(WITHOUT_CFI[WITHOUT_CFI.index("__asm__") : WITHOUT_CFI.index("void through")], "")
    program = compiled(
        source,
        tmp_path,
        "-Wl,--no-as-needed",
        str(tmp_path / "lib.so"),
        "-Wl,--build-id=none",
        f"-Wl,-rpath,{tmp_path}",
    )
    with running(program) as process:
        before = functions_of(traced := traced_or_skip(process.pid, FileStore()), traced.threads[0])
        for path in (program, tmp_path / "lib.so"):
            if change == "convert":
                assert cli.run("--in-place", path).status == 0
            else:
                path.unlink()
            if change == "replace":
                path.write_bytes(Path("/proc/self/exe").read_bytes())
        after = traced_or_skip(process.pid, FileStore())
    names = functions_of(after, after.threads[0])
    # It may still have been about to wait.
    assert names[names.index("waiting") :] == before[before.index("waiting") :]
    assert {"through", "main"} <= set(before)
    assert after.threads[0].ending.kind == "outermost"
    assert f"{program} (deleted)+0x" in str(after)


def test_a_file_at_the_path_of_a_deleted_one_needs_its_build_id(tmp_path: Path) -> None:
    """As in cores, and in processes of which the kernel gives no links."""
    compiled(DEEP, tmp_path, "-Wl,--build-id=0x1234")
    data, built = (tmp_path / "program").read_bytes(), FileStore().open(str(tmp_path / "program"))
    assert isinstance(built, ModuleFile)
    mapping = FileMapping(0x10000, 0x10000 + 0x1000, 0, f"{tmp_path}/program (deleted)")
    for memory, is_known in ((data, True), (data.replace(b"\x12\x34", b"\x12\x35"), False), (bytes(len(data)), False)):
        space = AddressSpace(Snapshot(AMD64, [mapping], Memory([(0x10000, memory)]).read), FileStore())
        module = space.module_at(0x10000)
        assert module is not None
        assert (module.file is not None) == is_known, module.note


def test_two_traces_of_a_process_at_a_time(sleeper: subprocess.Popen[bytes], store: FileStore) -> None:
    """The second one, in this process or another, says who traces, and leaves the first alone."""
    traced_or_skip(sleeper.pid, store)
    with ThreadPoolExecutor(1) as other, stopped_threads(sleeper.pid):
        with pytest.raises(InputError, match=f"process {os.getpid()} traces it"):
            other.submit(trace_process, sleeper.pid, store=store).result()
        assert state_of(sleeper.pid) == "t"
    assert wait_for_state(sleeper.pid, "S") == "S"


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its root, as root")
def test_a_process_that_has_changed_its_root(tmp_path: Path, store: FileStore) -> None:
    """Its program is found, although it is not below the root that the process sees."""
    path = compiled(CHANGES_ROOT, tmp_path, "-static")
    (tmp_path / "root").mkdir()
    with running(path, tmp_path / "root") as process:
        traced = traced_or_skip(process.pid, store)
    assert traced.threads[0].ending.kind == "outermost"
    assert [module.note for module in traced.space.modules if module.name == str(path)] == [""]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts, as root")
def test_a_process_with_mounts_of_its_own(tmp_path: Path, store: FileStore) -> None:
    """Its files are found where it sees them."""
    program = compiled(DEEP.replace("5000", "3"), tmp_path)
    (tmp_path / "mount").mkdir()
    script = 'mount -t tmpfs none "$0/mount" && mv "$0/program" "$0/mount" && exec "$0/mount/program"'
    with running(need("unshare"), "-m", "sh", "-c", script, tmp_path) as process:
        assert not (tmp_path / "mount/program").exists()
        traced = traced_or_skip(process.pid, store)
    assert functions_of(traced, traced.threads[0]).count("dive") == 4
    assert not program.exists()


def test_rows_and_names_of_debug_files(tmp_path: Path) -> None:
    """A stripped program without `.eh_frame`: its debug file is looked for, named or left alone."""
    need("objcopy", "strip")
    flags = ("-g", "-fno-asynchronous-unwind-tables", "-Wl,--build-id=sha1")
    program = compiled(DEEP.replace("5000", "3"), tmp_path, *flags)
    debug = tmp_path / "program.debug"
    run("objcopy", "--only-keep-debug", program, debug)
    run("objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program)
    with running(program) as process:
        found = str(traced_or_skip(process.pid, FileStore()))
        assert found.count(" dive+") == 4
        assert found.endswith("end: outermost: RA is undefined")
        named = cli.run("trace", "--pid", str(process.pid), "--debug-file", debug).out.decode().strip()
        assert named.count(" dive+") == 4
        assert named.endswith("end: outermost: RA is undefined")
        alone = str(traced_or_skip(process.pid, FileStore(debug_file=None)))
        assert "dive" not in alone
        assert "no-row" in alone


def test_a_signal_s_return_code_without_cfi(tmp_path: Path) -> None:
    """As in musl: its row comes from the instructions, and leads to what the signal interrupted."""
    with running(compiled(RESTORES, tmp_path)) as process:
        store = FileStore(source="code")
        traced_or_skip(process.pid, store)
        result = cli.run("trace", "--pid", str(process.pid), "--from", "code", "--format", "json")
    (thread,) = json.loads(result.out)["threads"]
    names = [frame["function"] for frame in thread["frames"]]
    after = thread["frames"][names.index("handler") + 1]
    assert after["row"] == {"source": "converted", "version": 3, "kind": "flexible", "type": "pcinc", "signal": True}
    assert after["index"] < names.index("main")
    assert thread["ending"] == "outermost"
