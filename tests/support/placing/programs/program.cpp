// SPDX-License-Identifier: Apache-2.0
// Exercises what depends on segments: exceptions, TLS, ifunc, the brk heap, dlopen, dl_iterate_phdr.
// With "--segments" it prints the PT_GNU_SFRAME segments that are mapped, with size, checksum and permissions.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

static thread_local int counter = 41;
static char zeroed[70000];
static char filled[5000] = {1, 2, 3};

extern "C" {
static int chosen(int value) { return value * 3; }
static int (*resolve_pick())(int) { return chosen; }
int pick(int value) __attribute__((ifunc("resolve_pick")));
}

static __attribute__((noinline)) int thrower(int depth) {
    volatile char frame[64] = {0};
    if (depth == 0) throw std::runtime_error("deep");
    return thrower(depth - 1) + frame[depth % 64];
}

static int compare(const void *first, const void *second) {
    return *static_cast<const int *>(first) - *static_cast<const int *>(second);
}

static void permissions_of(uintptr_t address, char *found) {
    char line[512];
    std::strcpy(found, "none");
    FILE *maps = std::fopen("/proc/self/maps", "r");
    while (maps && std::fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char flags[8];
        if (std::sscanf(line, "%lx-%lx %7s", &start, &end, flags) == 3 && start <= address && address < end)
            std::strcpy(found, flags);
    }
    if (maps) std::fclose(maps);
}

static int print_segments(struct dl_phdr_info *info, size_t, void *) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &entry = info->dlpi_phdr[i];
        if (entry.p_type != PT_GNU_SFRAME) continue;
        const unsigned char *bytes = reinterpret_cast<const unsigned char *>(info->dlpi_addr + entry.p_vaddr);
        uint64_t sum = 0xcbf29ce484222325u;
        for (size_t at = 0; at < entry.p_memsz; at++) sum = (sum ^ bytes[at]) * 0x100000001b3u;
        const char *name = std::strrchr(info->dlpi_name, '/');
        char flags[8];
        permissions_of(reinterpret_cast<uintptr_t>(bytes), flags);
        std::printf("%s %lu %016lx %s\n", name ? name + 1 : "main", (unsigned long)entry.p_memsz,
                    (unsigned long)sum, flags);
    }
    return 0;
}

int main(int argc, char **argv) {
    long sum = 0;
    for (unsigned at = 0; at < sizeof zeroed; at++) sum += zeroed[at];
    for (unsigned at = 0; at < sizeof filled; at++) sum += filled[at];
    try {
        thrower(20);
    } catch (const std::exception &error) {
        std::printf("caught %s\n", error.what());
    }
    char *heap = static_cast<char *>(sbrk(0));
    std::string grown;
    for (int at = 0; at < 5000; at++) {
        void *block = std::malloc(static_cast<size_t>(at % 700 + 1));
        std::memset(block, at, static_cast<size_t>(at % 700 + 1));
        if (at % 3) std::free(block);
        grown += static_cast<char>('a' + at % 26);
    }
    std::memset(zeroed, 1, sizeof zeroed);
    int numbers[] = {3, 1, 2};
    std::qsort(numbers, 3, sizeof(int), compare);
    std::printf("sum %ld tls %d ifunc %d sorted %d%d%d heap %d %zu\n", sum, ++counter, pick(5), numbers[0],
                numbers[1], numbers[2], heap >= reinterpret_cast<char *>(&zeroed), grown.size());
#ifndef NO_DLOPEN
    for (int at = 1; at < argc; at++) {
        if (argv[at][0] == '-') continue;
        void *library = dlopen(argv[at], RTLD_NOW);
        if (!library) {
            std::printf("dlopen: %s\n", dlerror());
            return 2;
        }
        int (*run)(int) = reinterpret_cast<int (*)(int)>(dlsym(library, "library_run"));
        int normal = run(4);
        std::printf("library %d %d\n", normal, run(-1));
    }
#endif
    std::fflush(stdout);
    if (argc > 1 && std::strcmp(argv[1], "--segments") == 0) dl_iterate_phdr(print_segments, nullptr);
    if (argc > 1 && std::strcmp(argv[1], "--abort") == 0) std::abort();
    return 0;
}
