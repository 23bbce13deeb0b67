# Two commands do everything on a fresh machine with Python 3.11+: `make run` and `make test`.
PYTHON ?= python3
# `make test PYTHON=python3.13` has an environment of its own, beside the one that the first `make` made.
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
RUN_STAMP := $(VENV)/.run-installed
DOCS_STAMP := $(VENV)/.docs-installed
PORT   ?= 9092
# Three tests at a time for two cores: many wait for brokers, clients and time-outs.
JOBS   ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))
# A worker without tests takes half of those that another has left. The default hands out so many at once that
# one worker gets nearly all tests with Spark, and the others end long before it.
SHARED := --dist worksteal
# What runs on one broker in `make test` and on three in `make test-cluster`.
CLUSTER_SUITES := $(addprefix tests/,clients cli groups transactions exactly_once interop behaviour)
# What also runs on three brokers with TLS, SCRAM and ACLs, in `make test-secure`.
SECURE_SUITES := $(addprefix tests/,groups transactions exactly_once chaos security/test_secure_cluster.py security/test_changes_under_faults.py)
# PySpark 4.2, the oldest that works, beside the newest one of $(VENV).
SPARK_4_2 := $(VENV)-spark-4.2
# The tests with Kerberos need the package gssapi, which is built with Debian's libkrb5-dev.
GSSAPI := command -v krb5-config >/dev/null && $(BIN)/python -m pip install -q gssapi || true
# What needs more than PyPI and Java has a target of its own.
HERE := not kafka and not cassandra and not browser and not other_clients and not prometheus and not s3

.PHONY: help run test test-long test-cluster test-secure test-spark-4.2 test-kafka test-cassandra test-other-clients test-prometheus test-s3 test-browser check check-deploy bench bench-kafka dist docs clean

help:            ## what can be made
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# What `make run` runs, without test tools and type checkers.
$(RUN_STAMP): pyproject.toml setup.py $(wildcard src/tidelog/*/*.pyx src/tidelog/*/*.pxi)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing tidelog, its console and Spark into $(VENV), once; it takes a minute or two."
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[spark,console]'
	@$(BIN)/python -m compileall -q src
	@touch $(RUN_STAMP)

$(STAMP): pyproject.toml setup.py $(wildcard src/tidelog/*/*.pyx src/tidelog/*/*.pxi)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m compileall -q src
	@touch $(STAMP) $(RUN_STAMP)

$(DOCS_STAMP): pyproject.toml setup.py $(wildcard src/tidelog/*/*.pyx src/tidelog/*/*.pxi)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $(DOCS_STAMP)

# The first time it compiles the files of src once more, to the same: not while other tests run on them.
$(SPARK_4_2)/.installed: $(STAMP)
	@test -x $(SPARK_4_2)/bin/python || $(PYTHON) -m venv $(SPARK_4_2)
	$(SPARK_4_2)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' 'pyspark==4.2.*'
	@touch $@

run: $(RUN_STAMP) ## a broker on 127.0.0.1:9092 (PORT=N for another), data in ./tidelog-data; with Java, all pipelines
	@$(BIN)/tidelog demo --port $(PORT)

test: $(STAMP)   ## the tests, short form
	$(BIN)/python -m pytest -q -n $(JOBS) $(SHARED) -m '$(HERE) and not long'

test-long: $(STAMP)  ## the same tests with the full counts of seeds, kills and records
	TIDELOG_LONG=1 $(BIN)/python -m pytest -q -n $(JOBS) $(SHARED) -m '$(HERE)'

test-cluster: $(STAMP) ## the suites of clients, groups and transactions on three brokers and a real ZooKeeper (needs Java 17+)
	TIDELOG_TEST_BROKERS=3 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -rs -m '$(HERE) and not long' $(CLUSTER_SUITES)

test-secure: $(STAMP) ## the suites of groups, transactions and faults on three brokers with TLS, SCRAM and ACLs (needs Java 17+)
	TIDELOG_TEST_SECURITY=1 TIDELOG_TEST_BROKERS=3 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -rs -m '$(HERE) and not long' $(SECURE_SUITES)

test-spark-4.2: $(SPARK_4_2)/.installed ## the tests with Spark on PySpark 4.2 (needs Java 17+; from PyPI into .venv-spark-4.2)
	$(SPARK_4_2)/bin/python -m pytest -q -n $(JOBS) $(SHARED) -m '$(HERE) and not long' tests/spark

test-kafka: $(STAMP) ## against Apache Kafka's own programs (needs Java 17+ and mvn, which downloads its jars)
	@$(BIN)/python -m tests.kafka.jars
	@$(GSSAPI)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m kafka
	$(BIN)/python -m tests.kafka.client_suite

test-cassandra: $(STAMP) ## the pipeline into a real Cassandra 5 (needs Java 17 and mvn, which downloads its jars)
	@$(BIN)/python -m tests.cassandra.server
	$(BIN)/python -m pytest -q -m cassandra tests/cassandra

test-other-clients: $(STAMP) ## three brokers with kcat, confluent-kafka, franz-go, sarama and KafkaJS (needs Java 17+, Go, npm, kcat; a client whose tools are missing is left out)
	@$(BIN)/python -m tests.other_clients.programs
	@$(GSSAPI)
	$(BIN)/python -m pytest -q -rs -m other_clients tests/other_clients

test-prometheus: $(STAMP) ## the expressions of the field's dashboards on a real Prometheus, and our alert rules by promtool (needs Debian's prometheus)
	$(BIN)/python -m pytest -q -rs -m prometheus tests/prometheus tests/deploy

test-s3: $(STAMP) ## races and kills of writers of tables on a real S3 server, versitygw (needs Go, which builds it from its module proxy into .cache/s3)
	@$(BIN)/python -m tests.support.versitygw
	$(BIN)/python -m pytest -q -m s3 tests/tables tests/spark/test_killed_drivers.py tests/spark/test_two_hosts.py

test-browser: $(STAMP) ## the console's pages in a real browser, and its API against its description (needs Debian's chromium and npm, which fetches axe-core into .cache)
	@$(BIN)/python -m tests.console.axe
	$(BIN)/python -m pytest -q -rs -m browser tests/console

check: $(STAMP)  ## lint, types, the direction of imports, and the names on the map
	$(BIN)/ruff check src tests bench packaging
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_architecture_map.py tests/clients/typing/check_typing.py

check-deploy: $(STAMP) ## the files of deploy/ and packaging/ by linters: schemas of compose and Kubernetes, kubectl, systemd-analyze, promtool, dashboard-linter (a linter whose program is missing is left out and named)
	@$(BIN)/python -m pip install -q "check-jsonschema>=0.33,<1" "kubernetes-validate>=1.31,<2"
	@$(BIN)/python -m tests.deploy.linters
	$(BIN)/python -m pytest -q -rs tests/deploy tests/docs/test_deployment.py

bench: $(STAMP)  ## every speed target beside its figure (needs a C compiler)
	$(BIN)/python bench/run.py

bench-kafka: $(STAMP) ## ours and Apache Kafka 4.3 in turns, then clusters beside Kafka 3.9, into docs/benchmarks.md (needs Java 17+, mvn for its jars, a C compiler)
	$(BIN)/python bench/against_kafka.py --docs
	$(BIN)/python bench/clusters_against_kafka.py --docs

dist: $(STAMP)   ## source archive and wheels in dist/, each installed into an empty environment and tried
	$(BIN)/python packaging/dist.py

docs: $(DOCS_STAMP) ## the documentation as a site in site/, and the files of settings from their definitions
	$(BIN)/tidelog config-docs > docs/configuration.md
	$(BIN)/tidelog config-docs --clients > docs/client-settings.md
	$(BIN)/python packaging/typed_settings.py > src/tidelog/clients/typed_settings.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "The site begins at site/index.html."

clean:           ## remove what was built
	rm -rf .venv .venv-* build dist site bench/build src/*.egg-info
	find src -name '*.so' -o -name '_speed.c' -o -name '_json.c' | xargs -r rm -f
