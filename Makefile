# gpuadm. `make help` lists what there is to do.

GO        ?= go
BIN       := bin
GOFUMPT   := $(GO) run mvdan.cc/gofumpt@v0.12.0
STATICCHK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := $(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
CRANEPKG  := github.com/google/go-containerregistry/cmd/crane@v0.22.1
CRANE     := $(GO) run $(CRANEPKG)
VULNCHECK := $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0
# The database of govulncheck.
GOVULNDB  ?= https://vuln.go.dev
# go test that says a line a package, and lists at the end what failed and what was skipped, and why.
TEST      := $(GO) run gotest.tools/gotestsum@v1.13.0 --format=pkgname --format-hide-empty-pkg --
# Here the names alone: what a failed test of a machine says runs to hundreds of lines, and lies above.
LABTEST   := $(GO) run gotest.tools/gotestsum@v1.13.0 --format=standard-verbose --hide-summary=output --
FUZZTIME  ?= 5m
# Minimising an input that is interesting takes up to a minute by default, and a target does little else then.
FUZZMINIMIZE ?= 1s
OLDLIBC   := $(BIN)/oldlibc
# Go programs that run here, while GOARCH and CC name another architecture.
HOSTGO    := env -u GOARCH -u CC CGO_ENABLED=0 $(GO)
# What image, packages and dist are made for: this machine. A release says ARCHES="amd64 arm64", which needs on
# Debian gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
ARCHES    ?= $(shell $(GO) env GOHOSTARCH)
VERSION   ?= devel
# The image's name, which the release's chart and manifests have: a registry and a path.
IMAGE     ?= gpuadm
# The time of all files in packages: https://reproducible-builds.org/specs/source-date-epoch/.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# go-nvml calls what nvml.h marks as deprecated.
export CGO_CFLAGS := -O2 -g -fstack-protector-strong -Wno-deprecated-declarations
# The same flags for all: what is built once serves the next target too.
export GOFLAGS := $(GOFLAGS) -trimpath -tags=netgo,osusergo
# Under the race detector with -short: not those that take longest in one goroutine. make nightly runs all.
ALONE     := Test(Pairs|PrintedFixes|DrainCut|MIGLabelCut|ShrinkingSpecs|ApplyLeaves|Hostile|Compacted|Collect|KilledAtEvery|BakeThenBoot|NoRestart|UndoOf|GPUBoth|CUDA|BundleOfA|BakeIsIts|AnswersHave)
# go test takes packages in this order: those that begin last would run alone.
LONGEST   := ./test/laws ./test/containerd ./internal/packages/apt ./cmd/gpuadm
# Tests that boot machines: they have targets of their own.
LABTESTS  := Test(Lab|Slow|Bench|VM|Metal)([A-Z(]|$$)
# Which tests a change asks for: test/rings.
RINGS     := $(GO) run ./test/rings
# What images/build/sbom reads of each package: its module, the module's folder, and its own folder.
LINKED    := {{if .Standard}}std{{"\t"}}{{.Root}}{{"\t"}}{{.Root}}{{else}}{{.Module.Path}}{{"\t"}}{{.Module.Dir}}{{"\t"}}{{.Dir}}{{end}}
.DEFAULT_GOAL := build
.PHONY: facts help build repro sbom image packages dist push repository release-dry demo test race check workflows test-modules arm64 vulndb vulncheck lab-hosts kube-build lab crash nightly kube lab-kube lab-slow vm bench metal metal-node mokka fuzz parts update clean

help: ## list the targets, and how long each takes on two cores: a second
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# PIE and relro: code lies at a random place, and what the loader has relocated is read-only from then on. Partial: not -z now: go-nvml links
# with --unresolved-symbols=ignore-in-object-files, and its symbols are bound when they are first called, by a library that is
# opened after the start; where all had to be bound at the start, no machine without NVIDIA's driver would start gpuadm.
# -L is a path from here, since the build ID is made of it: `make repro`.
build: $(OLDLIBC)/libc.so ## build bin/gpuadm for this machine; it starts on glibc 2.28 (RHEL 8) and newer: seconds, 2 minutes from empty caches
	@CGO_ENABLED=1 sh images/build/waiting.sh "building $(BIN)/gpuadm" $(GO) build -buildmode=pie -ldflags='-s -w $(if $(filter-out devel,$(VERSION)),-X main.release=$(VERSION)) -linkmode=external -extldflags "-L$(OLDLIBC) -pie -Wl,-z,separate-code -Wl,-z,relro"' -o $(BIN)/gpuadm ./cmd/gpuadm
	$(OLDLIBC)/oldlibc check $(BIN)/gpuadm

$(OLDLIBC)/libc.so: $(wildcard images/build/oldlibc/*.go)
	mkdir -p $(OLDLIBC)
	$(HOSTGO) build -o $(OLDLIBC)/oldlibc ./images/build/oldlibc
	set -e; libc=$$($(CC) -print-file-name=libc.so.6); for part in libpthread:0 libdl:2 libc:6; do \
	  name=$${part%:*}; \
	  $(OLDLIBC)/oldlibc assembly $$name $$libc >$(OLDLIBC)/$$name.s; \
	  $(OLDLIBC)/oldlibc versions $$name $$libc >$(OLDLIBC)/$$name.map; \
	  $(CC) -shared -nostdlib -Wl,--version-script=$(OLDLIBC)/$$name.map -Wl,-soname,$$name.so.$${part#*:} -o $(OLDLIBC)/$$name.so $(OLDLIBC)/$$name.s; \
	done

repro: ## make all of dist in two folders, and compare them byte by byte: 2 minutes
	set -e; at=$$(mktemp -d); trap 'rm -rf "$$at"' EXIT; \
	for folder in one two/with/a/longer/path; do \
	  mkdir -p $$at/$$folder; \
	  git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- --ignore-failed-read | tar --extract -C $$at/$$folder; \
	  $(MAKE) --no-print-directory -C $$at/$$folder dist; \
	done; \
	cmp $$at/one/bin/gpuadm $$at/two/with/a/longer/path/bin/gpuadm; diff -r $$at/one/bin/dist $$at/two/with/a/longer/path/bin/dist

sbom: build ## write bin/gpuadm.cdx.json, the modules that are linked in, in CycloneDX's form, and bin/gpuadm.copyright, their licences: seconds after build
	CGO_ENABLED=1 $(GO) list -deps -f '$(LINKED)' ./cmd/gpuadm | $(HOSTGO) run -C images/build/sbom . $(abspath $(BIN))/gpuadm
	@$(GO) version -m $(BIN)/gpuadm | awk '$$1 == "dep" {print $$2 "@" $$3}' | while read -r module; do \
	  grep -qF "\"pkg:golang/$$module\"" $(BIN)/gpuadm.cdx.json || { echo "sbom: $$module is missing"; exit 1; }; \
	done

image: build ## write bin/gpuadm-image.tar, an OCI image for ARCHES (this machine's; ARCHES="amd64 arm64" for both) of the program and the C library of this Debian's apt, and print its digests: 1 minute after build
	set -e; native=$$($(GO) env GOHOSTARCH); parts=; for arch in $(ARCHES); do \
	  if [ $$arch = $$native ]; then at=$(BIN); $(MAKE) --no-print-directory sbom; \
	  else \
	    at=$(BIN)/$$arch; case $$arch in amd64) cc=x86_64-linux-gnu-gcc;; arm64) cc=aarch64-linux-gnu-gcc;; esac; \
	    $(MAKE) --no-print-directory sbom BIN=$$at GOARCH=$$arch CC=$$cc; \
	  fi; \
	  parts="$$parts $$arch=$(CURDIR)/$$at/gpuadm"; \
	done; \
	$(HOSTGO) run -C images/build/image . -version $(VERSION) -out $(abspath $(BIN))/gpuadm-image.tar $$parts

packages: sbom ## write bin/packages: a deb and an rpm for this machine's architecture, each in two versions, for the lab: 1 minute after build
	rm -rf $(BIN)/packages
	set -e; arch=$$($(GO) env GOHOSTARCH); for version in 0.0.1 0.0.2; do \
	  $(HOSTGO) run -C images/build/packages . -root $(CURDIR) -version $$version -formats 'deb rpm' -out $(abspath $(BIN))/packages $$arch=$(abspath $(BIN))/gpuadm; \
	done

dist: image ## write bin/dist: deb, rpm, tar.gz for ARCHES, the image, chart, manifests, bills of materials, checksums: 1 minute after image
	rm -rf $(BIN)/dist
	mkdir -p $(BIN)/dist
	set -e; native=$$($(GO) env GOHOSTARCH); parts=; for arch in $(ARCHES); do \
	  if [ $$arch = $$native ]; then at=$(BIN); else at=$(BIN)/$$arch; fi; \
	  cp $$at/gpuadm.cdx.json $(BIN)/dist/gpuadm-$$arch.cdx.json; \
	  parts="$$parts $$arch=$(CURDIR)/$$at/gpuadm"; \
	done; \
	cp $(BIN)/gpuadm-image.tar $(BIN)/dist/; \
	sh images/packages/manifests.sh $(IMAGE) $(patsubst devel,0.0.0-devel,$(VERSION)) $(BIN)/gpuadm-image.tar $(BIN)/dist; \
	$(HOSTGO) run -C images/build/packages . -root $(CURDIR) -version $(VERSION) -out $(abspath $(BIN))/dist $$parts

push: ## push bin/gpuadm-image.tar as IMAGE:VERSION, and print its digest: seconds, by the network
	@sh images/packages/push.sh $(IMAGE) $(VERSION) $(BIN)/gpuadm-image.tar $(CRANE)

repository: ## write bin/repository: repositories for apt and dnf of the packages in the folder PACKAGES, signed by REPOSITORY_KEY, for a server at REPOSITORY_URL: seconds
	@sh images/packages/repository.sh $(PACKAGES) $(BIN)/repository

release-dry: ## rehearse the release VERSION on this machine: dist, a registry, signatures, repositories, notes: 2 minutes
	@GO="$(GO)" sh images/packages/release-dry.sh $(VERSION) $(CRANEPKG)

demo: ## take an embedded simulated node through plan, apply, apply, undo: seconds, 50 to 90 from empty caches
	@echo "make demo: compiles gpuadm with its simulated node (50 to 90 s from empty caches), then runs plan, apply, apply, undo on 8 simulated H100: driver, toolkit, MIG, containerd."
	@sh images/build/waiting.sh "compiling" $(GO) test -c -o $(BIN)/demo.test ./cmd/gpuadm
	@cd cmd/gpuadm && $(abspath $(BIN))/demo.test -test.run '^TestDemo$$' -demo

test: ## run all tests that need neither root nor a GPU: 3 to 10 minutes on two cores, by their speed, also from empty caches
	@echo "make test: 3 to 10 minutes on two cores, by their speed; a line for each package that is done. The first four take longest."
	GOGC=400 $(TEST) -skip '$(LABTESTS)' -timeout 30m $(LONGEST) ./...
	@echo "$$(grep -rhE '^func $(LABTESTS)' --include='*_test.go' test/lab test/vm | wc -l) lab tests: make lab, make lab-kube, make lab-slow, make vm"

race: ## run what a change can break under the race detector: 2 minutes, 6 for all
	@packages=$$($(RINGS) race) && if [ -n "$$packages" ]; then GOGC=400 $(TEST) -race -short -skip '$(ALONE)|$(LABTESTS)' -timeout 45m $$packages; else echo "race: the change concerns no package"; fi

check: ## form, vet, tidy, imports law, package docs, help texts, and staticcheck of what changed: 1 minute, 4 from empty caches
	@f=$$($(GOFUMPT) -l .) && [ -z "$$f" ] || { echo "gofumpt: $$f"; exit 1; }
	$(GO) vet ./...
	$(GO) mod tidy -diff
	$(GO) test ./test/house ./test/rings ./cmd/gpuadm -run 'TestImports|TestPackageDocs|TestHelp|TestLines|TestTable|TestTargets'
	@packages=$$($(RINGS) staticcheck) && if [ -n "$$packages" ]; then $(STATICCHK) $$packages; else echo "staticcheck: the change concerns no package"; fi

workflows: ## check the workflows of the forge: seconds
	$(ACTIONLINT)

test-modules: ## test the modules of images/build, which make the chart and the packages: 1 minute
	$(GO) test -C images/build/chart .
	$(GO) test -C images/build/packages .
	$(GO) test -C images/build/sbom .

arm64: ## build for arm64 and without cgo: 2 minutes from empty caches
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/gpuadm

vulndb:
	@curl -fsS --max-time 20 -o /dev/null $(GOVULNDB)/index/db.json || { \
	echo "vulncheck: cannot look for known vulnerabilities: $(GOVULNDB) does not answer; GOVULNDB=URL names a copy of it" >&2; exit 75; }

vulncheck: vulndb ## look for known vulnerabilities in what is linked: 1 minute
	@$(VULNCHECK) -db $(GOVULNDB) ./cmd/gpuadm

parts: ## fetch and build what the containerd tests compare with (four containerds, nvidia-ctk): 5 minutes once, then from the cache
	$(GO) run ./test/containerd/parts/fetch

lab-hosts: build parts ## as root: make the root filesystems of the lab's hosts: 10 minutes once, then from the cache
	$(GO) run ./test/lab/cmd/lab setup

lab: lab-hosts packages ## as root: boot real systemd hosts, and test gpuadm on them: the smoke and what shows the change, 10 minutes (CASE=prefix selects, LAB_ALL=1 runs all, KEEP=1 keeps the hosts)
	@pattern=$$(if [ -n "$(CASE)" ]; then echo 'TestLab$(CASE)'; elif [ -n "$(LAB_ALL)" ]; then echo TestLab; else $(RINGS) lab; fi) && \
	$(LABTEST) ./test/lab -run "$$pattern" -count=1 -parallel 4 -timeout 150m

crash: lab-hosts packages ## as root: kill a command and cut the power at its touches on real systemd hosts, and go on: a few cuts of each kind, 10 minutes (CASE=prefix selects, LAB_ALL=1 cuts at every touch, PART=2/12 at those of a part)
	$(if $(PART),GPUADM_PART=$(PART)) $(LABTEST) ./test/lab -run 'TestLabCrash$(CASE)' -count=1 -parallel 2 -timeout 300m

kube-build: ## build the programs of a Kubernetes control plane; minutes once, then from the cache
	$(GO) run ./test/lab/kube/cmd/kube build

lab-kube: lab-hosts kube-build ## as root: real kubelets on such hosts join a real control plane: the smoke and what shows the change, 6 minutes (CASE=prefix selects, LAB_ALL=1 runs all)
	@pattern=$$(if [ -n "$(CASE)" ]; then echo 'TestLabKube$(CASE)'; elif [ -n "$(LAB_ALL)" ]; then echo TestLabKube; else $(RINGS) kube; fi) && \
	$(LABTEST) ./test/lab/kube -run "$$pattern" -count=1 -parallel 2 -timeout 90m # beside the lab, on a small machine: kubelets have limits of their own

nightly: build ## as root: shuffle, race, all of the labs, image, repro; a part of the laws, of an error and a kill at every system call, and of the crash lab: 2 to 4 hours; one that was cut short goes on; ends with one page, bin/nightly.md (RING="laws lab" selects)
	$(RINGS) nightly $(RING)

kube: kube-build ## as root: a Kubernetes control plane in a network of its own, until Ctrl-C
	$(GO) run ./test/lab/kube/cmd/kube up

lab-slow: build ## as root: Debian's own NVIDIA driver, compiled for Debian's kernel; minutes once, then from the cache
	$(GO) run ./test/lab/cmd/lab setup
	$(LABTEST) ./test/lab -run TestSlow -count=1 -timeout 90m

vm: build ## as root, after lab-slow: boot a baked node, cut its power, have it reboot; boot the kernel the driver was compiled for; emulated, so up to an hour
	$(LABTEST) ./test/vm -run TestVM -count=1 -timeout 90m

bench: build parts ## figures beside nvidia-ctk's in the same run: wall, peak memory, and Go's own benchmarks: 10 minutes
	$(GO) run ./test/bench
	$(GO) test ./test/lab -run TestLabConvergedRatio -v -count=1
	$(GO) test ./test/lab -run TestBenchDriver -v -count=1 -timeout 30m
	$(GO) test ./test/lab -run TestLabMIGBeside -v -count=1
	$(GO) run ./test/lab/kube/cmd/kube build
	$(GO) test ./test/lab/kube -run TestBenchKube -v -count=1 -timeout 30m
	$(GO) test -run '^$$' -bench . -benchmem ./internal/... ./runtime/... ./stages/... ./test/...

metal: build ## as root, on a machine with GPUs: a report of what gpuadm finds; FULL=1 makes layouts, too, and undoes them: docs/metal.md: minutes
	$(HOSTGO) build -o $(BIN)/metal ./test/metal
	$(BIN)/metal -gpuadm $(BIN)/gpuadm -o $(BIN)/metal.txt $(if $(FULL),-full)

metal-node: lab-hosts ## as root, on a machine with GPUs: a host of the lab becomes a node with them; PLUGIN is NVIDIA's device plugin: docs/metal.md: minutes
	$(MAKE) --no-print-directory kube-build
	GPUADM_DEVICE_PLUGIN=$(abspath $(PLUGIN)) $(LABTEST) ./test/lab/kube -run 'TestMetalNode$$' -count=1 -v -timeout 20m

mokka: build ## doctor on NVIDIA's own mock of NVML: MOKKA=DIR is a checkout of https://github.com/NVIDIA/k8s-test-infra: 1 minute
	$(MAKE) -C $(MOKKA)/pkg/gpu/mocknvml NO_PADDING=1
	MOKKA=$(abspath $(MOKKA)) GPUADM=$(abspath $(BIN))/gpuadm $(TEST) ./internal/doctor -run 'TestMokka$$' -count=1 -v

fuzz: ## run every fuzz target for FUZZTIME (5m) each
	@for p in $$($(GO) list ./...); do \
	  for t in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	    echo "== $$p $$t"; $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime $(FUZZMINIMIZE) $$p || exit 1; \
	  done; \
	done

facts: ## regenerate the tables of facts about drivers from a folder of published records, and show the diff: DIR=records: seconds
	$(HOSTGO) run ./images/build/facts "$(DIR)"

update: ## rewrite the golden files: 2 minutes
	$(GO) test ./cloud/node ./internal/doctor ./internal/facts ./internal/instance ./internal/mask ./internal/spec ./drivers ./runtime/containerd ./runtime/crio ./stages ./cmd/gpuadm ./test/containerd -update
	$(GO) test -C images/build/chart . -run TestManifests -update

clean: ## remove what was built here: a second
	rm -rf $(BIN)
