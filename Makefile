# ckptfs. `make help` lists the targets; the two that matter are `make demo` and `make test`.
#
# Settings are given on the command line: `make demo DIR=~/project`, `make soak SOAK_SECONDS=600`.

SHELL := /bin/bash
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin

PREFIX ?= /usr/local
SBINDIR ?= /sbin
UNITDIR ?= /etc/systemd/system
UNITS := $(notdir $(wildcard mount/*.service mount/*.socket))
DESTDIR ?=
BASE ?=
ARGS ?=
DIR ?=
SOAK_SECONDS ?= 1800
IMAGE ?= ckptfs
PLUGIN ?= ckptfs:local

.DEFAULT_GOAL := help
.PHONY: help deps build check test test-all test-posix test-crash soak quick demo picture demo-branches demo-remote demo-clean bench bench-latency bench-native bench-seeds bench-store bench-export bench-import bench-restore bench-growth bench-gc bench-freeze bench-db bench-absence bench-branches bench-hooks bench-remote bench-compare check-macos deny install uninstall image plugin deb deb-files share-files

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

deps: ## Install what the tests and the demo need (apt), load fuse
	@tests/deps.sh

build: ## Build the release binary: target/release/ckptfs
	cargo build --release --features remote -p ckptfs -p ckptfs-browse

check: ## Format, lints, docs, feature sets, licences, macOS
	@tests/run.py check

test: ## What to run before each commit: each test on one variant; ends with counts
	@tests/run.py test

test-all: ## Every test on each of its variants, remotes and conformance suites among them
	@tests/run.py all

test-posix: ## The POSIX tests, pjdfstest and fsx among them, in their long form
	@CKPTFS_LONG=1 LIMIT=5400 tests/run.py deps tools posix mounted

test-crash: ## The kill, power-cut and failing-call tests in their long form
	@mkdir -p target/cuts
	@CKPTFS_LONG=1 CKPTFS_KEEP=$${CKPTFS_KEEP:-$(CURDIR)/target/cuts} LIMIT=7200 tests/run.py deps crash cut faults takeover engine merge branch

soak: ## Model, concurrency and endurance for SOAK_SECONDS each, decoders and limits in their long form, with a random seed (printed)
	@CKPTFS_LONG=1 CKPTFS_FUZZ_CASES=$$(($(SOAK_SECONDS) * 20)) CKPTFS_ROUNDS=$$(($(SOAK_SECONDS) / 10 + 1)) CKPTFS_SEED=$$RANDOM \
		LIMIT=$$(($(SOAK_SECONDS) + 3600)) tests/run.py deps unit hostile limits
	@CKPTFS_LONG=1 CKPTFS_SEED=$${CKPTFS_SEED:-random} CKPTFS_SECONDS=$(SOAK_SECONDS) LIMIT=$$(($(SOAK_SECONDS) * 2 + 3600)) tests/run.py model
	@CKPTFS_LONG=1 CKPTFS_SEED=$$RANDOM CKPTFS_SECONDS=$$(($(SOAK_SECONDS) / 10 + 1)) LIMIT=$$(($(SOAK_SECONDS) * 3 + 1200)) tests/run.py concurrent
	@CKPTFS_LONG=1 CKPTFS_SECONDS=$$(($(SOAK_SECONDS) / 180 + 1)) CKPTFS_ROUNDS=$$(($(SOAK_SECONDS) / 360 + 1)) \
		LIMIT=$$(($(SOAK_SECONDS) * 4 + 3600)) tests/run.py endurance

# Built for the time of the build: only the crates that the demo needs, and little optimized.
QUICK := target/quick/ckptfs
quick:
	@echo "Building ckptfs without remotes, CSI and MCP: about 3 minutes from nothing on 2 cores."
	cargo build --profile quick --no-default-features

demo: ## The main job on real input: make demo [DIR=~/project]
	@tests/deps.sh demo
	@$(MAKE) --no-print-directory quick
	@CKPTFS=$(CURDIR)/$(QUICK) benches/demo.sh run $(if $(DIR),"$(DIR)")

picture: build ## The picture of the README, from a real run
	TMPDIR=$${TMPDIR:-/var/tmp} docs/demo.py

demo-branches: ## Four branches, edited at once, merged, in conflict, undone: make demo-branches [DIR=~/project]
	@tests/deps.sh demo
	@$(MAKE) --no-print-directory quick
	@CKPTFS=$(CURDIR)/$(QUICK) benches/demo.sh branches $(if $(DIR),"$(DIR)")

demo-remote: deps build ## Checkpoints in a bucket and a registry on the loopback: make demo-remote [DIR=~/project]
	@benches/demo.sh remote $(if $(DIR),"$(DIR)")

demo-clean: ## Unmount and remove what the demos left
	@CKPTFS=$(firstword $(wildcard $(CURDIR)/$(QUICK) $(CURDIR)/target/release/ckptfs) ckptfs) benches/demo.sh clean

bench: bench-latency bench-native ## Both benchmarks on real mounts, as root: make bench [ARGS="--quick --fs xfs --write-docs"]

bench-latency: deps ## How long the verbs take: make bench-latency [ARGS="--only checkpoint --write-docs"]
	cargo bench --bench latency -- $(ARGS)

bench-native: ## Real work beside a plain directory and the floor: make bench-native [ARGS="--only small,git --write-docs"]
	@tests/deps.sh bench
	cargo bench --bench native -- $(ARGS)

bench-seeds: deps ## The tables of Spike 2, JVS, VRift and sy made again: make bench-seeds [ARGS="--only jvs --quick --write-docs"]
	cargo bench --bench seeds -- $(ARGS)

bench-export: build ## Export and fork beside cp --reflink and rsync, as root: make bench-export [ARGS="ROUNDS FILES"]
	@benches/export.sh $(ARGS)

bench-import: build ## Import beside cp --reflink: new, hashed, again; as root: make bench-import [ARGS="ROUNDS FILES"]
	@benches/import.sh $(ARGS)

bench-restore: build ## Restore beside clone, chmod, utimens and rename by hand; as root: make bench-restore [ARGS="ROUNDS FILES"]
	@benches/restore.sh $(ARGS)

bench-growth: build ## A long history beside a short one: sizes, memory, times; as root: make bench-growth [ARGS="CHECKPOINTS CHANGES FILES"]
	@benches/growth.sh $(ARGS)

bench-gc: build ## What gc leaves of a long history, and how long a writer beside it waits; as root: make bench-gc [ARGS="CHECKPOINTS CHANGES FILES"]
	@benches/gc.py $(ARGS)

bench-freeze: build ## How long a checkpoint takes while files are open, and how long others wait for it; as root: make bench-freeze [ARGS="ROUNDS SCENARIO"]
	@benches/freeze.py $(ARGS)

bench-db: build ## SQLite and pgbench beside a plain directory, and appends after a checkpoint; as root: make bench-db [ARGS="ROUNDS ROW"]
	@benches/db.py $(ARGS)

bench-absence: build ## What an unmount writes down and the next mount compares, in milliseconds; as root: make bench-absence [ARGS=FILES]
	@benches/absence.sh $(ARGS)

bench-branches: build ## Branches beside git worktree, cp --reflink, fork and a btrfs snapshot; as root: make bench-branches [ARGS="ROUNDS FILES..."]
	@tests/deps.sh bench
	@benches/branches.py $(ARGS)

bench-remote: build ## How long a push and a pull take, beside rustic and restic; as root: make bench-remote [ARGS="ROUNDS FILES"]
	@tests/deps.sh bench
	@RUSTIC=$$(cargo bench -p ckptfs-remote --no-run --bench rustic --message-format json | python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])') && \
		RUSTIC=$$RUSTIC benches/remote.py $(ARGS)

bench-hooks: build ## How long the hooks of agents take, alone and beside 50 others; as root: make bench-hooks [ARGS="ROUNDS AGENTS FILES"]
	@benches/hooks.py $(ARGS)

bench-store: ## Store and history alone: what an append, a look-up, a batch, a listing of a view cost
	cargo bench --bench store --bench history

bench-compare: ## The same on two revisions, with the change of each, and the seeds' JVS rows: make bench-compare BASE=REV [ARGS=seeds]
	@benches/compare.sh "$(BASE)" $(ARGS)

deny: ## Check dependencies: licences, sources, bans, known vulnerabilities (installs cargo-deny: minutes)
	@tests/deny.sh

check-macos: ## Type-check the library for aarch64-apple-darwin
	@tests/check-macos.sh

install: build share-files ## Install the binary, mount.ckptfs, the systemd units, the manual and completions
	install -D -m 755 target/release/ckptfs $(DESTDIR)$(PREFIX)/bin/ckptfs
	install -D -m 755 target/release/ckptfs-browse $(DESTDIR)$(PREFIX)/libexec/ckptfs/ckptfs-browse
	install -D -m 755 mount/mount.ckptfs $(DESTDIR)$(PREFIX)/lib/ckptfs/mount.ckptfs
	install -d $(DESTDIR)$(SBINDIR)
	ln -sfn $(PREFIX)/lib/ckptfs/mount.ckptfs $(DESTDIR)$(SBINDIR)/mount.ckptfs
	install -d $(DESTDIR)$(UNITDIR)
	for unit in $(UNITS); do sed 's|@PREFIX@|$(PREFIX)|g' mount/$$unit >$(DESTDIR)$(UNITDIR)/$$unit || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/ckptfs
	cp -R mount/claude-plugin $(DESTDIR)$(PREFIX)/share/ckptfs/
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 target/share/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -D -m 644 target/share/bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ckptfs
	install -D -m 644 target/share/zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ckptfs
	install -D -m 644 target/share/fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ckptfs.fish

# The manual and completions, which the program itself writes: BIN can be another build of it.
BIN ?= target/release/ckptfs
share-files:
	rm -rf target/share
	$(BIN) man target/share/man
	for shell in bash zsh fish; do $(BIN) completion $$shell >target/share/$$shell || exit 1; done

uninstall: ## Remove what `make install` installed
	rm -f $(DESTDIR)$(PREFIX)/bin/ckptfs $(DESTDIR)$(SBINDIR)/mount.ckptfs $(addprefix $(DESTDIR)$(UNITDIR)/,$(UNITS))
	rm -rf $(DESTDIR)$(PREFIX)/lib/ckptfs $(DESTDIR)$(PREFIX)/libexec/ckptfs $(DESTDIR)$(PREFIX)/share/ckptfs/claude-plugin
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/ckptfs.1 $(DESTDIR)$(PREFIX)/share/man/man1/ckptfs-*.1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ckptfs
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ckptfs $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ckptfs.fish

image: ## Build the container image from a static binary, without a registry: docker/README.md
	docker/image.sh "$$(docker/static.sh)" $(IMAGE)

plugin: ## Make the managed Docker plugin from a static binary: docker/README.md
	docker/plugin.sh "$$(docker/static.sh)" $(PLUGIN)

deb: build deb-files share-files ## Build the Debian package: target/debian/ (needs `cargo install cargo-deb`)
	cargo deb --no-build --strip

# What the package has besides the binary, as it is to lie in /usr.
deb-files:
	rm -rf target/deb
	mkdir -p target/deb/units
	for unit in $(UNITS); do sed 's|@PREFIX@|/usr|g' mount/$$unit >target/deb/units/$$unit || exit 1; done
