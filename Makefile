# The recipes that people and CI share. `make help` lists them.

PREFIX ?= /usr/local
SHARE = $(DESTDIR)$(PREFIX)/share
BUILT = $(or $(CARGO_TARGET_DIR),target)/release/belljar
RELEASE_TARGET ?= $(shell uname -m)-unknown-linux-musl

.PHONY: all help release packages install check check-wasm test test-all bench openapi

all: ## build belljar for this machine: target/release/belljar
	cargo build --release

install: ## build and install the binary, shell completions and man pages (PREFIX=/usr/local, DESTDIR=)
	cargo build --release --locked --package belljar-cli
	install -D $(BUILT) $(DESTDIR)$(PREFIX)/bin/belljar
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(BUILT) completions bash > $(SHARE)/bash-completion/completions/belljar
	$(BUILT) completions zsh > $(SHARE)/zsh/site-functions/_belljar
	$(BUILT) completions fish > $(SHARE)/fish/vendor_completions.d/belljar.fish
	$(BUILT) man $(SHARE)/man/man1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'
	@echo '  make test-X       one phase of the tests:'
	@ci/test | sed 's/^/    /'

release: ## build the static binary that is shipped (needs the musl target of rustup, and musl-tools)
	@rustc --print target-libdir --target $(RELEASE_TARGET) 2>/dev/null | xargs -I{} test -d {} || { \
		echo "error: the Rust toolchain has no standard library for $(RELEASE_TARGET)"; \
		echo "hint: get it with: rustup target add $(RELEASE_TARGET)"; exit 1; }
	@command -v musl-gcc >/dev/null || { \
		echo "error: there is no C compiler for musl, which SQLite and a grammar need"; \
		echo "hint: get it with: apt-get install musl-tools"; exit 1; }
	cargo build --release --locked --features secrets --target $(RELEASE_TARGET)
	@echo "built $(or $(CARGO_TARGET_DIR),target)/$(RELEASE_TARGET)/release/belljar"

packages: ## build everything that can be installed into dist/: wheel, npm, Debian package, archive, install.sh
	packaging/build

check: ## formatting, lints, dependencies and spelling; warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --exclude belljar-wasm --features belljar-cli/secrets --all-targets --quiet -- -D warnings
	cargo clippy --package belljar-cli --package belljar-egress --features otel --all-targets --quiet -- -D warnings
	ci/policy
	ci/lint
	ci/deny

check-wasm: ## the same lints for the wasm backend, whose dependencies take minutes to build
	cargo clippy --package belljar-cli --package belljar-wasm --features belljar-cli/wasm --all-targets --quiet -- -D warnings

test: ## the tests to run before each commit: a few minutes, installs the few languages it needs
	@ci/test core

test-all: ## every other phase of the tests: about half an hour, needs root on Debian or Ubuntu
	@ci/test all

test-%:
	@ci/test $*

bench: ## measure against bare processes, bubblewrap, nsjail and docker in one run
	bench/run

openapi: ## write openapi/belljar-v1.json again, after a change to the HTTP interface
	@mkdir -p build
	cargo run --quiet --package belljar-server --example openapi > build/openapi.json && mv build/openapi.json openapi/belljar-v1.json
