# Plimsoll. `make` lists what there is; each target installs what it needs on a Debian 12 machine (.ci/setup).
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

.PHONY: help setup setup-demo build dist demo check test test-full lint bench bench-published instructions fuzz native-images clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 20

setup: # the Debian packages that demo, bench and tests need; quick when they are there
	@.ci/setup

setup-demo:
	@.ci/setup demo

build: ## the release program: target/release/plimsoll
	$(CARGO) build --release -p plimsoll

dist: ## what people install, in dist/: static programs of both CPUs, archives, .deb, .rpm, OCI image, SBOM (CPU=x86_64 for one)
	@.ci/setup $(if $(filter-out $(shell uname -m),$(or $(CPU),all)),dist,dist-native)
	$(CARGO) run -q -p xtask -- dist $(CPU)

# A release that lies in dist/ spares the build of the program.
RELEASE := $(wildcard dist/plimsoll-*-$(shell uname -m).tar.gz)
demo: setup-demo $(if $(RELEASE),,build) ## a JVM with a native leak, found: the main job in a minute
	$(if $(RELEASE),@echo 'demo: runs $(RELEASE) and not these sources (to build them: rm -r dist)')
	$(CARGO) run -q $(if $(RELEASE),,--release) -p xtask -- demo $(RELEASE)

# GROUP=jdk,attach runs only these groups. AGAIN=1 repeats what test-full has already passed on these sources.
TESTS := $(CARGO) run -q -p xtask -- test
TEST_OPTIONS = $(if $(GROUP),--group $(GROUP)) $(if $(AGAIN),--again)

check: ## formatting, clippy, layering, unit and property tests: no JVM, no network
	@$(TESTS) check $(TEST_OPTIONS)

test: ## what CI runs: check, then one case of each kind on real programs (from Debian, Maven Central, PyPI and npm)
	@.ci/setup test
	@$(TESTS) test $(TEST_OPTIONS)

test-full: ## every test; resumes where it stopped; GROUP=jdk for one group. Writes docs/tested.md
	@.ci/setup test full
	@$(TESTS) full $(TEST_OPTIONS)

lint: ## only formatting and clippy
	@$(TESTS) check --group format,lint

bench: setup build ## the figures, beside those of peers, into bench/RESULTS.md (about four hours; wants a quiet machine). GROUP=forks,start for some parts
	$(CARGO) run -q --release -p xtask -- bench $(if $(GROUP),--only $(GROUP)) $(if $(QUICK),--quick)

bench-published: setup build ## four published tables, made again (TABLE=2 for one, ROUNDS=2 to see that it works); wants a quiet machine
	$(CARGO) run -q --release -p xtask -- bench-published $(if $(TABLE),--table $(TABLE)) $(if $(ROUNDS),--rounds $(ROUNDS))

instructions: setup ## instructions that the hooks cost, held to goldens/instructions.txt (BLESS=1 to accept)
	$(CARGO) test -q -p plimsoll --test instructions

fuzz: setup ## search every parser for crashes, hangs and wrong sums (SECONDS=60 each, TARGET=name for one)
	@fuzz/run "$(or $(SECONDS),60)" "$(TARGET)"

native-images: setup ## opt-in: builds native images with NMT, JFR and jcmd into target/native-images
	$(CARGO) run -q -p xtask -- native-images

clean: ## everything that was built or fetched
	$(CARGO) clean
	rm -rf dist
