# SPDX-License-Identifier: Apache-2.0
# Everything fetched or built lives in build/ and .venv/; nothing is installed on the machine.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STAMP   := $(VENV)/.installed-for-tests

.DELETE_ON_ERROR:
.PHONY: help venv demo test test-all nightly lint check docs dist generated golden fuzz bench same-bytes mutants judge-rows clean
.PHONY: types lock glibc zipapp deb check-dist test-lowest docs-links

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

DEMO ?= $(firstword $(realpath /bin/bash /bin/sh))

# The demonstration needs the package and its dependencies, not what tests and linters are.
demo: $(INSTALLED) ## convert a program (DEMO), verify the copy, print what it describes and its rows
	@mkdir -p build/demo
	$(BIN)/cfi2sframe --replace $(DEMO) -o build/demo/program
	$(BIN)/cfi2sframe verify build/demo/program
	$(BIN)/cfi2sframe coverage build/demo/program
	$(BIN)/cfi2sframe dump build/demo/program | head -n 40
	@echo
	@echo 'Next'
	@echo '  build/demo/program -c "echo as before"        # the copy runs'
	@echo '  $(BIN)/cfi2sframe dump build/demo/program    # all of its rows'
	@echo '  $(BIN)/cfi2sframe remove build/demo/program -o build/demo/original && cmp build/demo/original $(DEMO)'

# Of everything that is fetched, the version and the bytes are known: requirements/ has them, `make lock` renews it. On a
# machine for which a package has no wheel, `make WHEELS=` builds it, with tools of any version.
WHEELS      ?= --only-binary :all:
PIP_INSTALL := pip install --quiet --disable-pip-version-check $(WHEELS) --require-hashes --requirement
PIP_SOURCES := pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

# .venv has the package; with the test tools and the linters, it has $(STAMP), too.
venv: $(STAMP)

$(INSTALLED): pyproject.toml requirements/run.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "cfi2sframe needs Python 3.11 or later; name one with: make PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "making $(VENV), with pyelftools, capstone and flit_core from the package index"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/$(PIP_INSTALL) requirements/run.txt || { echo "the package index was not reached: $(VENV) needs" \
	  "$$(sed -n 's/^\([a-z-]*==[0-9.]*\).*/\1/p' requirements/run.txt | tr '\n' ' ')" >&2; exit 1; }
	@$(BIN)/$(PIP_SOURCES)
	@touch $@

$(STAMP): $(INSTALLED) requirements/dev.txt
	$(BIN)/$(PIP_INSTALL) requirements/dev.txt
	@touch $@

# Files or folders: `make test TESTS=tests/placing` runs the tests of one package.
TESTS ?= tests

test: venv ## run the first tier of tests (of TESTS): each value of each parameter, nothing slow
	$(BIN)/pytest -n auto $(TESTS)

test-all: test test-second ## run both tiers: also all combinations, and slow tests

test-second: venv
	$(BIN)/pytest -n auto --tier=second $(TESTS)

nightly: venv corpus-files ## compare the rows of all files of the corpus with those of a naive reader of CFI
	CORPUS_ONE_OF=1 $(BIN)/pytest -n auto --tier=all -rP tests/conversion/test_corpus.py

test-lowest: ## run unit tests with the oldest dependencies that pyproject.toml allows
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/$(PIP_INSTALL) requirements/lowest.txt
	build/lowest/bin/$(PIP_SOURCES)
	build/lowest/bin/pytest -n auto tests/abi tests/dwarf tests/sframe tests/elf tests/conversion tests/verification \
	  tests/golden tests/instructions tests/process tests/stubs $(wildcard tests/test_*.py)

lint: venv types ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy
	for script in $(wildcard tools/*.py bench/*.py docs/*.py); do $(BIN)/mypy "$$script" || exit 1; done

check: lint test ## lint and test: what has to pass before a change is merged

generated: venv ## write the reference pages -> docs, the man page and the completions -> data/share
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/share.py

golden: venv ## rewrite what is expected of the golden objects; review the diff
	$(BIN)/python -m tests.golden.expected

SITE   := build/site
SPHINX  = $(BIN)/python -m sphinx --conf-dir docs --jobs 2 --fail-on-warning --keep-going --nitpicky --quiet .

docs: venv ## build the site of the pages -> build/site
	$(BIN)/$(PIP_INSTALL) requirements/docs.txt
	$(SPHINX) $(SITE)
	@echo $(SITE)/index.html

# Looks whether the pages outside that the documents link to are there.
docs-links: venv
	$(BIN)/$(PIP_INSTALL) requirements/docs.txt
	$(SPHINX) --builder linkcheck $(SITE)-links

dist: venv ## build sdist, wheel and bill of materials, reproducibly -> dist
	$(BIN)/python tools/dist.py dist

check-dist: venv ## build them twice in different surroundings, and compare the bytes
	$(BIN)/python tools/check_dist.py

deb: venv ## build Debian packages of the program, and of the trigger that converts an installed system -> dist
	$(BIN)/python tools/deb.py dist

zipapp: venv ## build the program as one file, which needs the system's capstone -> dist/cfi2sframe.pyz
	$(BIN)/python tools/zipapp.py dist/cfi2sframe.pyz

.PHONY: judges packages oracles corpus-files modules

judges: packages oracles corpus-files modules ## fetch what some tests need: Debian's programs (as root), other binutils, LLVM, real ELF files

packages:
	tools/install-packages

# GNU binutils 2.40, 2.44 and the newest (also to run on s390x), LLVM and mold.
oracles:
	tools/fetch-oracles build/oracles sid=mold

# Real ELF files of three architectures.
corpus-files:
	tools/fetch-corpus build/corpus

modules: venv
	$(BIN)/$(PIP_INSTALL) requirements/judges.txt

glibc: oracles ## build a glibc whose backtrace() reads SFrame, for a slow test; takes 15 minutes
	tools/build-glibc build/glibc build/oracles

FUZZ_SECONDS ?= 60

fuzz: venv ## run each fuzz target for FUZZ_SECONDS, and keep what fails under testdata/fuzz
	$(BIN)/$(PIP_INSTALL) requirements/fuzz.txt
	$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS)

# GNU as has no rows for Go; archives have what programs are linked from.
NOT_MEASURED := age age-keygen restic '*.a'

bench: venv oracles corpus-files ## measure speed, sizes and look-ups, for docs/design.md
	$(BIN)/python bench/speed.py
	for level in 0 1 2; do for folder in build/corpus/*; do \
	  $(BIN)/cfi2sframe size -O$$level $(NOT_MEASURED:%=--exclude %) $$folder | grep ' files$$'; done; done
	$(BIN)/python bench/lookup.py

BEFORE ?= HEAD~1
ONE_OF ?= 1

same-bytes: venv corpus-files ## run all verbs on real files (every ONE_OFth) with this tree and with commit BEFORE, and compare
	$(BIN)/python tools/same_bytes.py --before $(BEFORE) --one-of $(ONE_OF)

ROOM ?= placing
N    ?= 50

mutants: venv ## plant N small faults in ROOM, one at a time, and list those that no test sees -> build/mutants
	$(BIN)/python tools/mutants.py --count $(N) $(ROOM)

FILES ?= /bin/bash
STEPS ?= /dev/null

judge-rows: venv ## compare rows from instructions with the CFI of FILES, hidden, and with programs run by STEPS
	$(BIN)/python tools/judge_rows.py hidden --seed 1 --seed 2 --all $(FILES)
	$(BIN)/python tools/judge_rows.py steps $(STEPS)

# Each with the versions of the one before, as they go into the same environment.
LOCK := build/lock/bin/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 \
  --generate-hashes --custom-compile-command 'make lock' pyproject.toml

# Looks for newer versions of what development needs, and writes them with their hashes -> requirements
lock:
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/$(PIP_INSTALL) requirements/lock.txt
	$(LOCK) --extra test --extra lint --output-file requirements/dev.txt
	$(LOCK) --extra build --constraint requirements/dev.txt --output-file requirements/run.txt
	$(LOCK) --extra docs --constraint requirements/dev.txt --output-file requirements/docs.txt
	$(LOCK) --extra fuzz --constraint requirements/dev.txt --output-file requirements/fuzz.txt
	$(LOCK) --extra judges --constraint requirements/dev.txt --output-file requirements/judges.txt
	$(LOCK) --extra lock --constraint requirements/dev.txt --output-file requirements/lock.txt
	$(PYTHON) tools/lowest.py > build/lock/lowest.in
	$(LOCK) --extra test --constraint build/lock/lowest.in --output-file requirements/lowest.txt

clean: ## remove what was built, fetched and cached
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
