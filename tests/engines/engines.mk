# Real engines, each in an environment of its own under .engines/ (9 GB in all); included by the main Makefile.
# An engine that cannot be set up is reported as NOT RUN and fails the verb; it never counts as passed.

ENGINES_PYTEST = PYTHONPATH=tests $(BIN)/python -m pytest -m engines -s --timeout 3600 -p no:cacheprovider
ENGINES_SETUP = PYTHONPATH=tests nice -n 10 $(BIN)/python -m engines.environments setup

.PHONY: engines engine-sglang engine-vllm engine-transformers engine-llamacpp engine-dflash

engines: $(VENV)/.dev ## Real SGLang, vLLM, transformers serve and z-lab's dflash: set up, start, compare, stop (an hour)
	-$(ENGINES_SETUP) transformers vllm sglang dflash
	@echo "llamacpp: NOT RUN here, it builds from source for 20 minutes: make engine-llamacpp"
	nice -n 10 env $(ENGINES_PYTEST) tests/engines --ignore tests/engines/test_llamacpp.py

engine-sglang: $(VENV)/.dev ## Only SGLang
	$(ENGINES_SETUP) sglang
	nice -n 10 env $(ENGINES_PYTEST) tests/engines/test_sglang.py

engine-vllm: $(VENV)/.dev ## Only vLLM
	$(ENGINES_SETUP) vllm
	nice -n 10 env $(ENGINES_PYTEST) tests/engines/test_vllm.py tests/engines/test_speculation.py

engine-transformers: $(VENV)/.dev ## Only transformers serve
	$(ENGINES_SETUP) transformers
	nice -n 10 env $(ENGINES_PYTEST) tests/engines/test_transformers_serve.py

engine-llamacpp: $(VENV)/.dev ## Only llama.cpp; builds from source, 20 minutes on two cores
	$(ENGINES_SETUP) llamacpp
	nice -n 10 env $(ENGINES_PYTEST) tests/engines/test_llamacpp.py

engine-dflash: $(VENV)/.dev ## Only the speculative loop of z-lab's released package
	$(ENGINES_SETUP) dflash
	nice -n 10 env $(ENGINES_PYTEST) tests/engines/test_reference_loop.py
