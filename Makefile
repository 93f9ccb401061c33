# SPDX-License-Identifier: Apache-2.0
# Everything fetched or built lives in build/ and .venv/; nothing is installed on the machine.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed

.DELETE_ON_ERROR:
.PHONY: held-to-cfi hidden-cfi lock check-dist wheel-compiled test-compiled attack mutants fuzz fuzz-differential dist zipapp generated test-lowest size-table size-table-installations installations producers producers-table standard-systems help venv test golden slow lint types check oracles glibc corpus-files corpus same-bytes house tree root demo bench bench-lookup bench-before clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with the package, the test tools and the linters

# Of everything that is fetched, the version and the bytes are known: requirements/ has them, `make lock` renews it. On a
# machine for which a package has no wheel, `make WHEELS=` builds it, with tools of any version.
WHEELS      ?= --only-binary :all:
PIP_INSTALL := pip install --quiet $(WHEELS) --require-hashes --requirement
PIP_SOURCES := pip install --quiet --no-deps --no-build-isolation --editable .

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "cfi2sframe needs Python 3.11 or later; name one with: make PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/$(PIP_INSTALL) requirements/dev.txt
	$(BIN)/$(PIP_SOURCES)
	@touch $@

# Each with the versions of the one before, as they go into the same environment.
LOCK := build/lock/bin/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 \
  --generate-hashes --custom-compile-command 'make lock' pyproject.toml

lock: ## look for newer versions of what development needs, and write them with their hashes -> requirements
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/$(PIP_INSTALL) requirements/lock.txt
	$(LOCK) --extra test --extra lint --output-file requirements/dev.txt
	$(LOCK) --extra compiled --constraint requirements/dev.txt --output-file requirements/compiled.txt
	$(LOCK) --extra docs --constraint requirements/dev.txt --output-file requirements/docs.txt
	$(LOCK) --extra fuzz --constraint requirements/dev.txt --output-file requirements/fuzz.txt
	$(LOCK) --extra lock --constraint requirements/dev.txt --output-file requirements/lock.txt
	$(PYTHON) tools/lowest.py > build/lock/lowest.in
	$(LOCK) --extra test --constraint build/lock/lowest.in --output-file requirements/lowest.txt

test: venv ## run all tests; those whose tools or files are missing are skipped, with the reason
	$(BIN)/pytest -n auto -m 'not slow'

test-lowest: ## run the unit tests with the oldest dependencies that pyproject.toml allows
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/$(PIP_INSTALL) requirements/lowest.txt
	build/lowest/bin/$(PIP_SOURCES)
	build/lowest/bin/pytest -n auto -m 'not slow' tests/dwarf tests/sframe tests/elf tests/verification tests/golden tests/plt \
	  tests/code $(wildcard tests/test_*.py)

# The tests stand in a folder without the package's sources, so that nothing but the wheel can be imported.
COMPILED       := build/compiled
COMPILED_TESTS ?= $(wildcard tests/test_*.py) tests/dwarf tests/sframe tests/elf tests/verification tests/golden tests/plt \
  tests/code tests/rewrite tests/jobs/test_isolation.py tests/faults/test_hostile_folder.py
SITE_PACKAGES  := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

test-compiled: venv ## compile the hot modules and run the tests of what they do, installed from the wheel
	$(BIN)/$(PIP_INSTALL) requirements/compiled.txt
	rm -rf $(COMPILED)
	$(BIN)/python tools/compiled.py $(COMPILED)/wheel
	$(BIN)/python -m venv $(COMPILED)
	$(COMPILED)/bin/pip install --quiet --no-index --no-deps $(COMPILED)/wheel/*.whl
	$(BIN)/python $(SITE_PACKAGES) > $$($(COMPILED)/bin/python $(SITE_PACKAGES))/dependencies.pth
	mkdir $(COMPILED)/tree
	cp -r $(filter-out cfi2sframe build dist,$(wildcard *)) $(COMPILED)/tree
	ln -s ../.. $(COMPILED)/tree/build
	cd $(COMPILED)/tree && CFI2SFRAME_EXPECT_COMPILED=1 ../bin/python -m pytest -n auto -m 'not slow' $(COMPILED_TESTS)

slow: venv ## run the tests that take minutes: large links, samples of running programs
	$(BIN)/pytest -n auto -m slow

golden: venv ## rewrite what is expected of the golden objects and of the verbs' words; read the difference before committing it
	$(BIN)/python -m tests.golden.expected
	$(BIN)/python -m tests.golden.verbs

lint: venv ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv ## check the types
	$(BIN)/mypy
	for script in $(wildcard tools/*.py bench/*.py docs/*.py); do $(BIN)/mypy "$$script" || exit 1; done

check: lint types test ## all of the above

generated: venv ## write the man page and the shells' completions again, from the parsers -> data/share
	$(BIN)/python tools/generate.py

.PHONY: step
STEP_ONLY ?=

step: venv ## step through codecs, OpenBLAS and musl programs, and hold rows of code without CFI to that (STEP_ONLY=musl: those)
	tools/fetch-step build/step
	$(BIN)/python tools/step.py $(addprefix --only ,$(STEP_ONLY))

.PHONY: step-emulated

step-emulated: venv ## the same for AArch64 and s390x, under qemu and of fewer programs
	tools/fetch-step build/step
	$(BIN)/python tools/step_emulated.py

.PHONY: stacks

stacks: venv ## sample stacks of a decoder and of OpenBLAS, and walk them with rows of code without CFI, without, and by gdb
	tools/fetch-step build/step
	$(BIN)/python tools/stacks.py

.PHONY: docs docs-links
SITE   := build/site
SPHINX  = $(BIN)/python -m sphinx --conf-dir docs --jobs 2 --fail-on-warning --keep-going --nitpicky --quiet .

docs: venv ## make a site of the documents, with the reference of the command line and of the library -> build/site
	$(BIN)/$(PIP_INSTALL) requirements/docs.txt
	$(SPHINX) $(SITE)

docs-links: venv ## look whether the pages outside that the documents link to are there
	$(BIN)/$(PIP_INSTALL) requirements/docs.txt
	$(SPHINX) --builder linkcheck $(SITE)-links

dist: venv ## build sdist, wheel and bill of materials, the same bytes for the same sources -> dist
	$(BIN)/python tools/dist.py dist

check-dist: venv ## build them twice in different surroundings, and compare the bytes
	$(BIN)/python tools/check_dist.py

wheel-compiled: venv ## build a wheel with the hot modules compiled, for this Python and kind of machine -> dist
	$(BIN)/$(PIP_INSTALL) requirements/compiled.txt
	$(BIN)/python tools/compiled.py dist

zipapp: venv ## build the program as one file for Python 3.11 or later; it takes capstone from the system -> dist
	$(BIN)/python tools/zipapp.py dist/cfi2sframe.pyz

oracles: ## fetch GNU binutils 2.44 and the newest (also to run on s390x), LLVM and mold, as judges for the tests -> build/oracles
	tools/fetch-oracles build/oracles sid=mold

glibc: oracles ## build the newest glibc whose backtrace() reads SFrame, as a judge; takes 15 minutes -> build/glibc
	tools/build-glibc build/glibc build/oracles

corpus-files: ## fetch real ELF files of three architectures -> build/corpus
	tools/fetch-corpus build/corpus

FUZZ_SECONDS  ?= 60
FUZZ_PROGRAMS ?= 100000

fuzz: venv ## run each fuzz target for FUZZ_SECONDS, and keep what fails under testdata/fuzz
	$(BIN)/$(PIP_INSTALL) requirements/fuzz.txt
	$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS)

ATTACK_MINUTES ?= 60

attack: venv ## try hostile trees, folders, bombs and every fuzz target for ATTACK_MINUTES (as root: races too)
	$(BIN)/$(PIP_INSTALL) requirements/fuzz.txt
	$(BIN)/python tools/attack.py --minutes $(ATTACK_MINUTES)

fuzz-differential: venv ## compare FUZZ_PROGRAMS random CFI programs with readelf and llvm-dwarfdump
	$(BIN)/python tools/fuzz_differential.py --programs $(FUZZ_PROGRAMS)

MUTANTS ?= 1/1

mutants: venv ## change one thing at a time in the core, and see whether its tests notice (MUTANTS=1/20: every 20th)
	$(BIN)/python tools/mutants.py --share $(MUTANTS)

installations: ## fetch the ELF files of a whole Debian installation for three architectures (2 GB) -> build/installations
	tools/fetch-corpus --installation build/installations

producers: ## fetch the ELF files of packages of many compilers for three architectures (2 GB) -> build/producers
	tools/fetch-producers build/producers

HELD ?= build/corpus/amd64

held-to-cfi: venv corpus-files ## derive what CFI says from instructions, for the files below HELD, and compare
	$(BIN)/python tools/held_to_cfi.py $(HELD)

HIDDEN ?= build/corpus/amd64

hidden-cfi: venv corpus-files ## derive rows from the files below HIDDEN as if they had no CFI, and compare them with it
	$(BIN)/python tools/hidden_cfi.py $(HIDDEN)

corpus: venv ## convert every ELF file of this machine and count what happens
	$(BIN)/python tools/corpus.py /usr/bin /usr/lib /usr/sbin

BEFORE ?= HEAD~1

same-bytes: venv corpus-files ## convert real files as they are and as of commit BEFORE, and compare all outputs
	$(BIN)/python tools/same_bytes.py --before $(BEFORE)

house: venv ## count lines by room, and what a small conversion enters, as they are and as of commit BEFORE
	$(BIN)/python tools/house.py --before $(BEFORE)

tree: venv ## convert a copy of 200 programs and their libraries, and see whether all still run
	$(BIN)/python tools/tree.py

root: venv ## convert a whole root of this machine's Debian release, use it, and compare it after the removal (needs root)
	tools/fetch-root build/root
	$(BIN)/python tools/root_trial.py --directory build/root

.PHONY: code-corpus code-figures bench-code

code-corpus: ## fetch the ELF files of packages with much code without CFI, for two architectures (100 MB) -> build/code
	PRODUCERS_LIST=tools/code.list tools/fetch-producers build/code amd64 arm64

code-figures: venv code-corpus ## measure what --from code makes of them, on a quiet machine -> docs/lab/code-without-cfi.md
	$(BIN)/python tools/code_figures.py measure -o build/code-figures.jsonl build/code
	$(BIN)/python tools/code_figures.py table --write docs/lab/code-without-cfi.md build/code-figures.jsonl

standard-systems: ## fetch the ELF files of the standard Debian system for three architectures -> build/standard
	tools/fetch-corpus --standard build/standard

size-table: venv standard-systems ## measure the standard system of three architectures, for docs/lab/measurements.md
	$(BIN)/python tools/size_table.py --split amd64=build/standard/amd64 arm64=build/standard/arm64 \
	  s390x=build/standard/s390x

size-table-installations: venv installations ## the same for whole installations; takes long
	$(BIN)/python tools/size_table.py amd64=build/installations/amd64 arm64=build/installations/arm64 \
	  s390x=build/installations/s390x

producers-table: venv producers ## measure those of `make producers` as they are and as of commit BEFORE -> docs/lab/producers.md; takes hours
	$(BIN)/python tools/producers.py measure --commit $(BEFORE) -o build/producers-$(BEFORE).jsonl
	$(BIN)/python tools/producers.py measure -o build/producers-now.jsonl
	$(BIN)/python tools/producers.py table --before build/producers-$(BEFORE).jsonl --write docs/lab/producers.md build/producers-now.jsonl

demo: venv ## show a conversion from start to end
	$(BIN)/python tools/demo.py

bench: venv ## measure speed, memory and size
	$(BIN)/python bench/speed.py
	$(BIN)/python bench/batch.py

bench-code: venv ## measure what --from code costs where there is nothing to do for it
	$(BIN)/python bench/code.py

bench-lookup: venv ## measure the time of a look-up in sections of every level and in DWARF's tables
	$(BIN)/python bench/lookup.py

bench-before: venv ## measure the speed of these sources against those of commit BEFORE
	$(BIN)/python bench/before.py --before $(BEFORE)

clean: ## remove what was built, fetched and cached
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
