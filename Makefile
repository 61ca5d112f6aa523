# Penstock. `make` alone lists what there is. Needs: Python 3.11 or later, make, a package index.

.DEFAULT_GOAL := help
.PHONY: watched images charts kubernetes n8n n8n-packages n8n-check dist dist-check help setup upstreams upstreams-older compare bench-peers node agui-client run test test-fast lint types imports contract docs bench console-check pictures chaos chaos-long rolling faults mutations lock format clean

BIN := .venv/bin
MEMBERS := shared clients/conformance clients/python services/approvals services/automations services/cli \
	services/connector services/console services/edge services/normalizer services/workflows
DEMO_UPSTREAMS := agno adk
UPSTREAMS := $(DEMO_UPSTREAMS) pydantic_ai agno_agui langgraph openai a2a
OLDER_UPSTREAMS := agno_older adk_older a2a_older
COMPARED := langgraph_dev aegra

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv from the locks, or add to that of `make run`; does nothing when it is current
	@deploy/venv.sh .venv deploy/requirements-run.txt:deploy/requirements-dev.txt $(MEMBERS)

upstreams: $(UPSTREAMS:%=upstream-%) ## Make the environments of the real agent servers (demo and tests)

upstream-%:
	@deploy/venv.sh .penstock/venvs/$* deploy/upstreams/$*.txt

upstreams-older: ## Make the environments of Agno 2.3, ADK 1.16 and a2a-sdk 0.3, for tests that are skipped without
	@$(MAKE) --no-print-directory upstreams UPSTREAMS="$(OLDER_UPSTREAMS)"

node: ## Make the Node packages that some tests use, where there is Node
	@deploy/node.sh .penstock/node/contract tests/contract/node
	@deploy/node.sh .penstock/node/restart tests/cli/node
	@deploy/node.sh .penstock/node/copilotkit tests/copilotkit
	@deploy/node.sh .penstock/node/console tests/console/node
	@deploy/node.sh .penstock/node/vercel tests/clients/vercel/node
	@deploy/node.sh .penstock/node/openai tests/clients/openai/node
	@deploy/node.sh .penstock/node/a2a tests/clients/a2a/node
	@deploy/node.sh .penstock/node/react tests/clients/react/node

agui-client: ## Make the real AG-UI clients that check our streams, where there is Node
	@for version in v1 v059; do \
		deploy/node.sh .penstock/agui-client/$$version tests/agui-client/$$version || exit 1; \
	done

n8n-packages: ## Install n8n into .penstock/n8n, which takes minutes (docs/n8n.md)
	@deploy/n8n/install.sh .penstock/n8n

n8n: n8n-packages ## Start a real n8n with the workflows of deploy/n8n on http://127.0.0.1:5678
	@exec deploy/n8n/start.sh .penstock/n8n

n8n-check: setup upstreams n8n-packages ## Try the workflows of deploy/n8n in a real n8n
	@$(BIN)/python -m pytest tests/e2e/test_n8n.py -m n8n -p no:xdist -rs

# The agents' environments are made meanwhile, with what is left of the processor; the page says so.
run: ## Start everything with demo agents on http://127.0.0.1:8000
	@mkdir -p .penstock/venvs; \
	for name in $(DEMO_UPSTREAMS); do \
		nice deploy/venv.sh .penstock/venvs/$$name deploy/upstreams/$$name.txt \
			>.penstock/venvs/$$name.log 2>&1 & \
	done; \
	deploy/venv.sh .venv deploy/requirements-run.txt $(MEMBERS) && exec $(BIN)/penstock up --demo

# Tests wait longer than they compute: eight workers leave a third of two cores idle.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
WORKERS := $(shell n=$$(($(CORES) * 6)); [ $$n -gt 12 ] && n=12; echo $$n)
PYTEST_N := $(BIN)/python -m pytest --workers $(WORKERS)
# Where Python may keep no compiled modules, each program that tests start compiles its own: 1 s.
test all-tests test-fast: export PYTHONDONTWRITEBYTECODE =
# pip would compile all modules of all environments, of which the tests import less than half.
test all-tests test-fast environments: export PIP_COMPILE = 0
# What needs nothing but .venv and takes little: pure code, and the bus over one real nats-server.
FAST := tests/shared tests/normalizer/test_fold.py tests/approvals/test_rules.py tests/web/test_identity.py \
	tests/connector/model/test_model.py tests/connector/upstreams tests/connector/legs/test_history.py \
	tests/conformance/test_conformance.py tests/conformance/test_examples.py \
	tests/conformance/test_real_path.py tests/contract/test_documents.py tests/contract/test_openapi.py \
	tests/chaos/test_checker.py tests/cli/test_render.py tests/test_architecture.py tests/test_links.py tests/readmes \
	--ignore tests/shared/bus/test_cluster.py \
	--ignore tests/shared/dialects/agui/test_agui_encode_client.py

test: ## Set up what is not there yet, and run all that CI runs (12 minutes on two cores)
	@$(MAKE) --no-print-directory -j4 checks all-tests

# mypy computes for a minute with one core. It begins when .venv is there, while other environments are
# made, and goes on beside the tests.
.PHONY: all-tests environments
all-tests: lint environments
	@$(PYTEST_N) -rs

# npm waits for its downloads meanwhile, so it begins first.
environments: node agui-client setup upstreams

test-fast: setup ## Run the tests of pure code and of the bus, which need .venv alone (90 s on two cores)
	@$(PYTEST_N) -m "not real and not bench and not console and not chaos and not dist and not images and not kubernetes and not n8n" -rs $(FAST)

.PHONY: checks
checks: lint types imports

lint: setup ## Check style and format
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check

types: setup ## Check types, strictly
	@$(BIN)/mypy

imports: setup ## Check who imports whom
	@$(BIN)/lint-imports --no-cache --no-logo

format: setup ## Put the code into the one format
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet

contract: setup ## Write deploy/contract/ anew from the models (ARGS=--release at a release)
	@made=$$(mktemp -d) && trap 'rm -rf "$$made"' EXIT && \
		$(BIN)/python -m penstock_cli.openapi $$made/openapi.json && \
		$(BIN)/python -m penstock.bus.admin.permissions > $$made/accounts.conf && \
		$(BIN)/python -m penstock_workflows.definition.schema > $$made/workflow.schema.json && \
		$(BIN)/python -m penstock.contract deploy/contract $(ARGS) && \
		cp $$made/workflow.schema.json deploy/contract/workflow.schema.json && \
		$(BIN)/python -m penstock_console.unseen > $$made/unseen.js && \
		cp $$made/unseen.js services/console/penstock_console/static/unseen.js && \
		cp $$made/openapi.json services/console/penstock_console/static/openapi.json && \
		$(BIN)/python -m penstock.contract.records $$made/openapi.json $$made && \
		$(BIN)/python -m penstock.contract.threads clients/python/penstock_client/async_client.py $$made/client.py && \
		$(BIN)/ruff check --quiet --fix --select I --config pyproject.toml $$made/*.py && \
		$(BIN)/ruff format --quiet --config pyproject.toml $$made/*.py && \
		cp $$made/models.py $$made/client.py clients/python/penstock_client/ && \
		cp $$made/records.d.ts clients/javascript/ && \
		cp deploy/contract/penstock.d.ts clients/javascript/events.d.ts && \
		cp $$made/accounts.conf deploy/nats/accounts.conf && \
		$(BIN)/python -m penstock.bus.admin.nack > $$made/streams.yaml && \
		cp $$made/streams.yaml deploy/helm/penstock/files/streams.yaml && \
		$(BIN)/python -m penstock.contract.agents deploy/helm/penstock/values.schema.json
	@PYTHONPATH=tests $(BIN)/python -m conformance

docs: setup ## Write the generated parts of the READMEs anew: settings tables
	@PYTHONPATH=tests $(BIN)/python -m readmes

dist: setup ## Build the wheels and sdists of this version into dist/, and its images where Docker or buildah is
	@deploy/dist.sh $(BIN)/python dist $(MEMBERS)
	@echo "dist/ has $$(ls dist/*.whl | wc -l) wheels. To install them into an environment:"
	@echo "  pip install --no-deps --require-hashes -r dist/requirements.txt"
	@deploy/images.sh

dist-check: setup upstreams ## Install the wheels into an empty environment, and run penstock from there
	@$(BIN)/python -m pytest tests/test_dist.py -m dist -p no:xdist --timeout 900 -rs

images: setup ## Build the images with buildah (as root), start each and serve runs from them
	@$(BIN)/python -m pytest tests/images -m images -p no:xdist -rs

kubernetes: setup ## Build Helm, an API server and Prometheus with Go, and install the chart into it (10 minutes once)
	@tests/helm/build.sh .penstock/kubernetes || echo "what Go did not build is skipped below"
	@$(BIN)/python -m pytest tests/helm tests/alerts -m "not chaos" -p no:xdist -rs

watched: setup ## Let a real Prometheus watch a deployment with faults, and draw its dashboards (15 minutes)
	@$(BIN)/python -m pytest tests/alerts/test_watched.py -m chaos -p no:xdist -s -rs

charts: setup ## Render the chart anew for the tests, after a change of it; needs Helm
	@cd tests && ../$(BIN)/python -m helm.charts

bench-peers: .penstock/go/centrifugo ## Make the peers that `make bench` measures beside the edge
	@deploy/venv.sh .penstock/venvs/bench_naive deploy/upstreams/bench_naive.txt

.penstock/go/centrifugo:
	@GOBIN=$(CURDIR)/.penstock/go go install github.com/centrifugal/centrifugo/v6@v6.9.1 \
		|| echo "measuring without the peer 'centrifugo', which Go builds"

bench: setup ## Measure, and print a table (ARGS="edge.w3 path" for a part, ROUNDS=n, ARGS=--long)
	@$(MAKE) --no-print-directory bench-peers || echo "measuring without the peer 'naive'"
	@PYTHONPATH=tests ROUNDS=$(ROUNDS) $(BIN)/python -m bench $(ARGS)

chaos: setup upstreams ## Kill, stop and cut everything for minutes, check every run; fuzz (SEED=n replays)
	@PENSTOCK_CHAOS_SEED=$(SEED) $(BIN)/python -m pytest tests/chaos tests/fuzz -m chaos \
		-p no:xdist --timeout 1800 -s --ignore tests/chaos/test_rolling.py

chaos-long: setup upstreams ## The same with 500 kills, under many seeds
	@PENSTOCK_CHAOS_SEED=$(SEED) PENSTOCK_CHAOS_KILLS=500 $(BIN)/python -m pytest tests/chaos \
		-m chaos -p no:xdist --timeout 7200 -s --ignore tests/chaos/test_rolling.py

rolling: setup upstreams ## Replace all pods under load as the chart says, as processes (SEED=n; 20 minutes)
	@PENSTOCK_CHAOS_SEED=$(SEED) $(BIN)/python -m pytest tests/chaos/test_rolling.py -m chaos \
		-p no:xdist --timeout 1800 -s

console-check: setup upstreams node ## Try the console at full size; pictures of its screens are in .penstock/pictures
	@mkdir -p .penstock/pictures
	@PENSTOCK_SHOTS=.penstock/pictures $(BIN)/python -m pytest tests/console -m "" --workers 2 -rs

pictures: setup upstreams node ## Make the pictures of README.md and docs anew, from the real pages
	@PENSTOCK_PICTURES=1 $(BIN)/python -m pytest tests/console/test_pictures.py -m "" -p no:xdist -q

faults: setup upstreams ## One fault after another, each at its full length
	@$(BIN)/python -m pytest tests -m chaos -p no:xdist --timeout 1800 -s \
		--ignore tests/chaos --ignore tests/fuzz --ignore tests/alerts

# aegra needs Python 3.12. What cannot be installed is "not shown" on the page.
compare: setup upstreams ## Kill Penstock and other servers by the same seeds, and write docs/compared.md (ARGS="agno adk")
	@for name in $(COMPARED); do \
		PYTHON="python3.12 python3.13" deploy/venv.sh .penstock/venvs/$$name deploy/upstreams/$$name.txt \
			|| echo "comparing without $$name"; \
	done
	@PYTHONPATH=tests $(BIN)/python -m compare $(ARGS)

mutations: setup ## Make faults in a copy of the code, one by one: the tests must catch each
	@PYTHONPATH=tests $(BIN)/python -m mutations $(ARGS)

COMPILE := CUSTOM_COMPILE_COMMAND="make lock" ../.venv/bin/pip-compile --quiet --generate-hashes \
	--allow-unsafe --strip-extras --no-emit-options

lock: setup ## Resolve the locks again, with hashes (ARGS=--upgrade for newer versions)
	@cd deploy && $(COMPILE) $(ARGS) requirements.in
	@cd deploy && $(COMPILE) $(ARGS) requirements-dev.in
	@cd deploy && $(COMPILE) $(ARGS) requirements-build.in
	@cd deploy && $(COMPILE) $(ARGS) requirements-run.in
	@for name in $(UPSTREAMS) $(OLDER_UPSTREAMS) langgraph_dev bench_naive; do \
		(cd deploy && $(COMPILE) $(ARGS) upstreams/$$name.in) || exit 1; \
	done

clean: ## Remove what was made: environments, demo data, caches
	@rm -rf .venv .penstock .hypothesis .import_linter_cache .ruff_cache build dist
	@find shared services tests -name __pycache__ -type d -prune -exec rm -rf {} +
