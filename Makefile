# AstraBox. `make help` lists the targets.

SHELL       := /bin/bash
GO          ?= go
NPM         ?= npm
# Relative, because make splits names at spaces and the checkout may lie below one.
BIN         := bin
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PKG         := github.com/astrabox/astrabox
LDFLAGS     := -s -w -X $(PKG)/internal/version.Version=$(VERSION)
# The version is given above; asking git would fail in a checkout of another user.
STATIC      := CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags '$(LDFLAGS)'
STATE       ?= .astrabox
WEB_SOURCES := $(shell find web -path web/node_modules -prune -o -path web/dist -prune -o -path web/e2e -prune -o -type f -print 2>/dev/null)

# Succeeds on a Node that Vite supports.
NODE_FITS   := const [a, b] = process.versions.node.split(".").map(Number); process.exit(a == 20 && b >= 19 || a == 22 && b >= 12 || a > 22 ? 0 : 1)

.DEFAULT_GOAL := help
.PHONY: help deps root build web run demo test test-go test-web test-interop test-e2e check lint bench clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install the OS packages that building and running need (as root, Debian)
	@scripts/deps build

# What makes sandboxes says so before it builds for minutes.
root:
	@[ "$$(id -u)" -eq 0 ] || { echo 'error: sandboxes need root: sudo env "PATH=$$PATH" make $(MAKECMDGOALS)' >&2; exit 1; }

build: deps $(BIN)/execd $(BIN)/shellagent $(BIN)/runc web $(BIN)/astrabox ## build everything into bin/

# Go decides itself what is out of date, so its targets always run.
.PHONY: $(BIN)/astrabox $(BIN)/execd $(BIN)/shellagent
$(BIN)/astrabox: web
	@echo "building $@"
	@$(STATIC) -o $@ ./cmd/astrabox
$(BIN)/execd:
	@echo "building $@"
	@$(STATIC) -o $@ ./cmd/execd
$(BIN)/shellagent:
	@echo "building $@"
	@$(STATIC) -o $@ ./cmd/shellagent

# runc from its own module: static, pinned by tools/runc/go.sum.
$(BIN)/runc: tools/runc/go.mod tools/runc/go.sum
	@echo "building $@"
	@cd tools/runc && CGO_ENABLED=1 $(GO) build -buildvcs=false -trimpath -tags 'seccomp netgo osusergo' \
		-ldflags '-s -w -extldflags "-static"' -o ../../$@ github.com/opencontainers/runc

web: web/dist/console/index.html ## build the console (skipped with a note where Node is missing)

web/dist/console/index.html: $(WEB_SOURCES)
	@if command -v $(NPM) >/dev/null && command -v node >/dev/null; then \
		node -e '$(NODE_FITS)' || { echo "error: the console needs Node 20.19, 22.12 or newer, and node is $$(node --version). Install a newer one, or build without the console: make NPM=none ..." >&2; exit 1; }; \
		echo "building the console"; cd web && { cmp -s package-lock.json node_modules/.astrabox-lock || { $(NPM) ci --no-audit --no-fund && cp package-lock.json node_modules/.astrabox-lock; }; } && $(NPM) run --silent build -- --logLevel warn; \
	else \
		echo "note: Node with npm was not found, so the console stays a page that says how to build it"; \
	fi

run: root build ## build, then start on http://127.0.0.1:8088; STATE=dir, ARGS="flags of serve"
	@exec $(BIN)/astrabox serve --state-dir '$(STATE)' $(ARGS)

demo: root build ## walk the main path against the real thing and check every step
	@$(BIN)/astrabox demo

test: build test-go test-web test-interop test-e2e demo ## run every test (Go with -race, console, other clients, browser, demo)

test-go: build
	@scripts/test-go

test-web: web
	cd web && $(NPM) run check && $(NPM) test

test-interop: root build
	@scripts/test-interop

test-e2e: root build
	@scripts/deps browser
	@scripts/test-e2e

check: lint ## format, vet, lint and the quick tests
	$(GO) vet ./...
	$(GO) test -race ./sandbox/... ./internal/archtest/... ./internal/model/... ./internal/agentprogram/...

lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not gofmt'ed:"; echo "$$out"; exit 1; }
	cd tools/lint && $(GO) build -o ../../$(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(BIN)/golangci-lint run ./...

bench: root build ## measure beside floors in the same run; ONLY=name,name runs some
	@$(BIN)/astrabox bench --only '$(ONLY)' --out bench/out

clean: ## remove what was built
	rm -rf bin web/dist/console web/node_modules bench/out
