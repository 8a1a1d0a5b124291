# longfat. `make demo` runs the main experiment, `make test` every check and test; both work from a bare clone.

.PHONY: help setup setup-tests build demo test test-rootless test-python test-ray checks clean bench-link bench-transfer bench-relay bench-capture bench-tcb bench-mobility bench-sim bench-lab bench-avail bench-why dist install test-kernels test-clients test-browser soak-relay soak-relay-adopt soak-relay-streams soak-relay-dialogues test-notebooks book reference fuzz papers papers-emulated report-imtcp static arm64 test-arm64 test-packages test-reproducible

LONGFAT := target/release/longfat

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: ## install missing system packages
	@scripts/setup

setup-tests: ## install what tests need beyond that (an SSH server among it)
	@scripts/setup tests

# Where a program was built is kept out of it: the same commit gives the same program anywhere (make test-reproducible).
REMAP = $(1)=$(CURDIR)=/longfat $(1)=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
build static arm64: export RUSTFLAGS += $(call REMAP,--remap-path-prefix)
build static arm64: export CFLAGS += $(call REMAP,-ffile-prefix-map)

build: setup ## build the program
	cargo build --release --locked

demo: build ## run the conversion experiment, simulated (seconds) and then emulated where this host can, and write a page of each
	@out=runs/conversion-$$(date -u +%Y%m%dT%H%M%SZ); \
	  echo "demo: simulated first, in seconds; then with the TCP of this kernel" >&2; \
	  $(LONGFAT) lab run experiments/conversion.toml --backend sim -o $$out-simulated; simulated=$$?; \
	  [ $$simulated -le 1 ] || exit $$simulated; \
	  $(LONGFAT) report $$out-simulated || exit 2; \
	  $(LONGFAT) lab run experiments/conversion.toml --repeats 2 -o $$out; status=$$?; \
	  if [ $$status -eq 3 ]; then \
	    echo "demo: this host cannot emulate the path (see above): the page above, which is SIMULATED, is all there is" >&2; \
	    exit $$simulated; \
	  fi; \
	  [ $$status -le 1 ] || exit $$status; \
	  $(LONGFAT) report $$out || exit 2; \
	  if [ $$status -eq 1 ]; then \
	    echo "demo: an expectation was missed (✗ above). Each case ran twice, so chance decides much: 'longfat lab run experiments/conversion.toml --repeats 5' tells more" >&2; \
	  fi; \
	  exit $$simulated

test: setup-tests checks ## every check and every test
	scripts/test
	$(MAKE) test-python
	$(MAKE) test-notebooks

test-rootless: setup ## the tests that any user can run on any machine; says what it leaves out
	scripts/test --rootless

# The program as the tests have it. 'cargo build' would choose other features, and build all of it once more.
PROGRAM = cargo test --workspace --locked --quiet --no-run --test cli

test-python: ## the Python package, with the program as the tests have it
	$(PROGRAM)
	python/environment
	target/python/bin/python -m pytest

test-ray: ## a sweep on a real Ray of two workers on this host: its tables are those of local processes, whatever is killed (2 minutes)
	$(PROGRAM)
	python/environment
	target/python/bin/python -m pytest python/tests/test_ray.py

test-notebooks: ## every notebook of docs/notebooks, executed into target/notebooks
	$(PROGRAM)
	python/environment notebooks
	target/python/bin/python python/notebooks

checks: setup ## formatting, lints, arrows, links, licences, documentation
	cargo fetch --locked --quiet
	cargo fmt --all --check
	scripts/check-arrows
	scripts/check-docs
	scripts/check-licences
	scripts/check-advisories
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --locked --quiet

fuzz: setup-tests ## every parser of strangers' bytes, fuzzed for a minute each
	scripts/fuzz 60

papers: build ## the papers' tables beside ours, simulated (some minutes, and 18 of a processor for 10 Gbit/s): docs/measurements/papers.md
	scripts/papers

papers-emulated: build ## the same on this kernel's TCP (hours; root): docs/measurements/papers-emulated.md
	scripts/papers --backend emulated

report-imtcp: build ## ImTCP and ImTCP-bg on one page with figures, simulated (and what runs/papers-emulated holds): runs/imtcp.html
	scripts/papers --paper "Tsugawa 2006" --report runs/imtcp.html

# Benchmarks: separate from tests, paired, ratios with spread; raw figures go to bench/*/results/DATE/.
bench-link: build ## goodput, lateness and CPU of the emulated path
	bench/link/measure.py

bench-transfer: build ## transfer beside iperf3
	bench/transfer/compare.py

bench-relay: build ## the relay beside plain forwarding and its peers
	bench/relay/compare.py

bench-capture: build ## capture beside tcpdump and dumpcap
	bench/capture/compare.py

bench-avail: build ## available bandwidth: ImTCP beside BBR's estimate and iperf3
	bench/avail/compare.py

bench-why: build ## causes injected over emulated paths, and which cause longfat why names first: the confusion table
	bench/why/causes.py --seeds 3
	bench/why/cost.py

bench-tcb: build ## listing 10,000 connections beside ss; what tracing every ACK costs
	bench/tcb/list.py
	bench/tcb/trace.py

bench-mobility: ## how long one announcement takes to reach 1,000 nodes
	cargo build --release --locked -p longfat-mobility --example nodes
	bench/mobility/nodes.py

bench-sim: ## packets per second of the simulator, alone and beside ns-3
	cargo run --release --locked -p longfat-sim --example dumbbell -- 300 60
	bench/sim/compare.py

bench-lab: build ## a simulated sweep on Ray beside local processes
	python/environment
	PATH="$(CURDIR)/target/python/bin:$$PATH" bench/lab/ray.py

# The same program but for how it is linked; what cargo leaves in target/release afterwards is the usual one again.
static: setup ## target/static/longfat: the program with every library in it
	cargo rustc --release --locked -p longfat-cli --bin longfat -- -C target-feature=+crt-static
	install -D $(LONGFAT) target/static/longfat
	cargo build --release --locked

arm64: setup ## target/arm64/longfat: the program for arm64 with every library in it, built on whatever this is
	scripts/setup-arm64
	scripts/arm64 rustc --release -p longfat-cli --bin longfat -- -C target-feature=+crt-static
	install -D target/aarch64-unknown-linux-gnu/release/longfat target/arm64/longfat

PURE := cc path-plan schema sim analyze
test-arm64: arm64 ## the same, tried in an emulator, with the tests of what is pure
	scripts/arm64 test $(PURE:%=-p longfat-%)
	qemu-aarch64-static target/arm64/longfat path --rate 1Gbit --rtt 28ms
	rm -rf target/arm64/smoke
	qemu-aarch64-static target/arm64/longfat lab run experiments/smoke.toml --backend sim -o target/arm64/smoke

dist: static build ## packages in target/dist: .deb, wheel, tarball, debug information, bill of materials, checksums
	scripts/dist

PREFIX ?= /usr/local
install: build ## the program, its manual pages, completions and service below PREFIX (/usr/local), and DESTDIR before it
	strip -o target/release/longfat.stripped $(LONGFAT)
	scripts/stage target/release/longfat.stripped "$(DESTDIR)" "$(PREFIX)"

test-kernels: build ## every feature on Debian's kernels 6.1, 6.12 and its newest, in virtual machines (some minutes a kernel)
	scripts/setup-kernels
	tests/kernels/run.py $(if $(PUBLISH),--publish $(PUBLISH))

test-packages: dist ## the .deb in Debian 12 and 13: installed, as a service of a living systemd, upgraded, purged; the guide's first page, timed (some minutes)
	scripts/setup-packages
	tests/packages/static
	for suite in bookworm trixie; do \
	  tests/packages/deb $$suite && tests/packages/service $$suite && tests/packages/five-minutes $$suite || exit; \
	done

test-reproducible: dist ## a second build of this commit, elsewhere: the same packages, byte for byte (one more release build)
	tests/packages/reproducible

test-clients: ## curl, ssh, git, databases, MQTT, SMTP, Samba, FTP and others through the relay, beside plain forwarding (installs Debian packages)
	scripts/setup-clients
	cargo build --release --locked -p longfat-relay --example relay
	tests/real-clients/run.py

test-browser: ## the pages' script, and 'longfat lab serve' in a headless Chromium (installs Debian's chromium, chromium-driver and nodejs)
	scripts/setup-browser
	node --test tests/browser/page.test.js
	$(PROGRAM)
	tests/browser/run.py

SOAK = cargo test --release --locked -p longfat-relay --test relay -- --ignored --nocapture --test-threads 1

soak-relay: soak-relay-streams ## the relay's long trials (half an hour): streams, 10,000 connections, 100,000 SYNs, ten minutes of load
	$(SOAK) ten_thousand flood_of_100_000 ten_minutes

soak-relay-streams: ## 1 GiB each way, IPv4 and IPv6, under loss and reordering, and tiny windows (15 minutes at most)
	cargo test --release --locked -p longfat-relay --test relay --no-run
	timeout 900 $(SOAK) long_streams a_gibibyte

soak-relay-adopt: ## 1,000 living connections adopted, upgraded, killed under and left, 20 times (3 minutes; SOAK_CONNECTIONS, 9,000 at most, SOAK_TIMES)
	SOAK_CONNECTIONS=$${SOAK_CONNECTIONS:-1000} SOAK_TIMES=$${SOAK_TIMES:-20} \
		cargo test --release --locked -p longfat-cli --test cli relay_adopt:: -- --nocapture

soak-relay-dialogues: ## 10,000 made-up dialogues, with and without the relay (5 minutes; DIALOGUES, DIALOGUES_SEED)
	DIALOGUES=$${DIALOGUES:-10000} cargo test --release --locked -p longfat-relay --test relay dialogues::made_up -- --nocapture

# Pinned, so that everybody builds the same site.
MDBOOK_VERSION := 0.5.4
MDBOOK = $(if $(shell command -v mdbook),mdbook,target/mdbook/bin/mdbook)

target/mdbook/bin/mdbook:
	cargo install mdbook --locked --version $(MDBOOK_VERSION) --root target/mdbook --target-dir target/mdbook/build

book: $(filter target/%,$(MDBOOK)) ## the documentation as a site with search, offline: target/book/index.html
	$(MDBOOK) build

reference: ## the generated pages of docs/reference, from the program itself
	$(PROGRAM)
	target/debug/longfat reference docs/reference

clean: ## remove what building and running left
	rm -rf target runs
