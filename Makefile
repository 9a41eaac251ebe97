# The recipes that people and CI share.

.PHONY: all install help test check check-wasm bench openapi tools

all: ## build the belljar binary and put it on the PATH (cargo's bin folder)
	cargo install --locked --path crates/cli

PREFIX ?= /usr/local
SHARE = $(DESTDIR)$(PREFIX)/share
BUILT = $(or $(CARGO_TARGET_DIR),target)/release/belljar

install: ## build and install the binary, shell completions and man pages (PREFIX=/usr/local, DESTDIR=)
	cargo build --release --locked --package belljar-cli
	install -D $(BUILT) $(DESTDIR)$(PREFIX)/bin/belljar
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(BUILT) completions bash > $(SHARE)/bash-completion/completions/belljar
	$(BUILT) completions zsh > $(SHARE)/zsh/site-functions/_belljar
	$(BUILT) completions fish > $(SHARE)/fish/vendor_completions.d/belljar.fish
	$(BUILT) man $(SHARE)/man/man1

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1  /p' $(MAKEFILE_LIST)

tools: ## install what the tests need: languages, QEMU, bubblewrap
	ci/tools

test: tools ## every test: units, conformance, attacks, leaks, and cgroup v2 in a virtual machine
	ci/test

check: ## formatting and lints, warnings refused
	cargo fmt --all --check
	cargo clippy --workspace --exclude belljar-wasm --all-targets --quiet -- -D warnings
	cargo clippy --package belljar-cli --features otel --all-targets --quiet -- -D warnings
	ci/policy

check-wasm: ## the same for the wasm backend, whose dependencies take minutes
	cargo clippy --package belljar-cli --package belljar-wasm --features belljar-cli/wasm --all-targets --quiet -- -D warnings

bench: ## measure against bare processes, bubblewrap, nsjail and docker in one run
	bench/run

openapi: ## write the description of the HTTP interface anew, after a change to it
	@mkdir -p build
	cargo run --quiet --package belljar-cli -- openapi > build/openapi.json && mv build/openapi.json openapi/belljar-v1.json
