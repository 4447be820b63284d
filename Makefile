# Targets of the project. `make check` is what CI runs, and what a change must
# pass; `make help` lists the rest. GO, FUZZTIME and the like may be set.

GO       ?= go
FUZZTIME ?= 30s
SOAK     ?= 30m
PKG      ?= ./...
BENCH    ?= .

# Packages tested at once. Tests with real processes keep deadlines, so a small
# machine does better with few.
JOBS ?= 2

# go-nvml calls functions that NVIDIA's header marks as old; its business.
export CGO_CFLAGS := -Wno-deprecated-declarations

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build the program into bin/sluice
	$(GO) build -o bin/sluice ./cmd/sluice

.PHONY: check
check: format rules vet staticcheck nocgo test race ## everything that a change must pass

.PHONY: format
format: ## gofmt has nothing to say
	@out=$$(gofmt -l $$(ls -d */ | grep -vE '^(bin|data)/')); test -z "$$out" || { echo "gofmt -w these:"; echo "$$out"; exit 1; }

.PHONY: rules
rules: ## the project's rules about its own source
	$(GO) test -short -count=1 ./cmd/rules

.PHONY: shrink
shrink: ## lower the rules' exceptions to what is there
	$(GO) test -short -count=1 ./cmd/rules -shrink

.PHONY: tidy
tidy: ## go.mod and go.sum name what is needed, and nothing else
	$(GO) mod tidy -diff

.PHONY: vet
vet: ## go vet
	$(GO) vet $(PKG)

bin/staticcheck: .ci/tools/go.mod .ci/tools/go.sum
	$(GO) -C .ci/tools build -o ../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck

.PHONY: staticcheck
staticcheck: bin/staticcheck ## staticcheck, at the version of .ci/tools
	bin/staticcheck $(PKG)

.PHONY: nocgo
nocgo: ## all builds without cgo, tests too
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) vet ./...

.PHONY: test
test: ## all tests
	$(GO) test -p $(JOBS) -timeout 10m $(PKG)

.PHONY: race
race: ## all tests under the race detector, in random order
	$(GO) test -p $(JOBS) -timeout 20m -race -shuffle=on $(PKG)

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME
	GO=$(GO) FUZZTIME=$(FUZZTIME) bash .ci/fuzz

.PHONY: bench
bench: ## all benchmarks (BENCH=pattern, PKG=packages)
	$(GO) test -p 1 -run '^$$' -bench '$(BENCH)' -benchmem -timeout 30m $(PKG)

.PHONY: bench-peers
bench-peers: build ## sluice beside nginx, HAProxy, Caddy and bare relays (ARGS=flags; ARGS=-h tells them)
	$(GO) build -o bin/peers ./bench/peers
	bin/peers $(ARGS)

.PHONY: demo
demo: ## the whole loop on this machine, without a GPU
	$(GO) run ./cmd/sluice demo

.PHONY: clients
clients: ## the official SDKs against the gateway, that of Go too (minutes, the first time)
	SLUICE_CLIENTS_GO=1 $(GO) test -count=1 -timeout 30m ./bench/clients

.PHONY: soak
soak: ## tests and demo again and again for SOAK, until one fails
	GO=$(GO) SOAK=$(SOAK) bash .ci/soak

.PHONY: storm
storm: ## 10,000 requests whose clients leave and whose engines fail, under the race detector
	SLUICE_STORM=10000 $(GO) test -count=1 -race -timeout 20m -v -run 'TestCancelStorm' ./gateway

.PHONY: soak-gateway
soak-gateway: ## the program under churn for SOAK: memory, goroutines and files stay level
	SLUICE_SOAK=$(SOAK) $(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./bench/storm

.PHONY: gpu-check
gpu-check: build ## on a machine with GPUs: inventory against nvidia-smi
	bash .ci/gpu-check bin/sluice

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin
