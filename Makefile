# make demo: the demonstration on a small torch model.  make test: every check but the slow ones.
# make docs: the API reference.
# make slow: what takes minutes each (chaos, storms, every state of the model, real models).
# PYTHON chooses the interpreter (3.11 or newer), TORCH what pip installs for torch.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN = $(VENV)/bin
# Real servers, browsers and clocks share the cores with other tests: what fails there is tried once more, alone.
AGAIN = --last-failed --last-failed-no-failures none
# Where there is no redis-server, the tests that start one are skipped.
NO_REDIS = $(if $(shell command -v redis-server),,--omit='*/shared/redis*.py')
DOCUMENTED = gpu_admission $(addprefix gpu_admission.,types request errors settings workloads rules estimators \
  devices guards observe serving testing)
DOCS ?= $(or $(TMPDIR),/tmp)/gpu-admission-docs
# In front of a command that takes long and says nothing: a dot every two seconds.
DOTS = (while sleep 2; do printf .; done) & trap "kill $$!; echo" EXIT;

.PHONY: demo test lint types unit slow bench docs
demo: $(VENV)/demo
	$(BIN)/gpu-admission demo

test: lint types unit

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test
	$(BIN)/mypy

unit: $(VENV)/test
	$(BIN)/coverage erase
	$(BIN)/pytest -m "not slow" --numprocesses auto --dist loadfile --cov --cov-report= || \
		$(BIN)/pytest $(AGAIN) -m "not slow" --cov --cov-append --cov-report=
	$(BIN)/coverage report --fail-under=95 --skip-covered
	$(BIN)/coverage report --fail-under=99 --show-missing --include='*/budget/*,*/http/*'
	$(BIN)/coverage report --fail-under=100 --show-missing --include='*/gpu_admission/shared/*' $(NO_REDIS)

# Some take a minute: a core that is done takes over what another has still to do.
slow: $(VENV)/test
	$(BIN)/pytest -m slow --numprocesses auto --dist worksteal || $(BIN)/pytest $(AGAIN) -m slow

bench: $(VENV)/bench
	$(BIN)/python -m tests.bench

# The API reference as pages, in a folder outside the repository.
docs: $(VENV)/docs
	$(BIN)/pdoc --output-directory "$(DOCS)" --docformat markdown $(DOCUMENTED)
	@echo "open $(DOCS)/index.html"

$(VENV)/demo $(VENV)/test $(VENV)/bench $(VENV)/docs: pyproject.toml
	@test -d $(VENV) || { $(DOTS) $(PYTHON) -m venv $(VENV); }
	@echo 'installing "$(TORCH)" and ".[$(notdir $@)]" into $(VENV) ...'
	@$(DOTS) $(BIN)/pip install --quiet --upgrade pip
	@$(DOTS) $(BIN)/pip install --quiet "$(TORCH)" --editable ".[$(notdir $@)]"
	touch $@
