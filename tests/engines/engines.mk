# Real engines, each in an environment of its own under .engines/ (9 GB in all); included by the main Makefile.
# An engine that cannot be set up is reported as NOT RUN and fails the verb; it never counts as passed.

# They take an hour or two: let other work on the machine go first.
ENGINES_NICE ?= 10
ENGINES_PYTEST = PYTHONPATH=tests $(BIN)/python -m pytest -m engines -s --timeout 3600 -p no:cacheprovider
ENGINES_SETUP = PYTHONPATH=tests nice -n $(ENGINES_NICE) $(BIN)/python -m engines.environments setup

.PHONY: engines engine-sglang engine-vllm engine-transformers engine-llamacpp engine-dflash

# llama.cpp comes last: its first build takes 20 minutes, and what goes wrong there keeps nobody from the others.
engines: $(VENV)/.dev ## Real SGLang, vLLM, transformers serve, z-lab's dflash, llama.cpp: set up, start, compare, stop
	-$(ENGINES_SETUP) transformers vllm sglang dflash
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines --ignore tests/engines/test_llamacpp.py; others=$$?; \
	$(ENGINES_SETUP) llamacpp; \
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines/test_llamacpp.py && exit $$others

engine-sglang: $(VENV)/.dev ## Only SGLang
	$(ENGINES_SETUP) sglang
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines/test_sglang.py

engine-vllm: $(VENV)/.dev ## Only vLLM
	$(ENGINES_SETUP) vllm
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines/test_vllm.py tests/engines/test_speculation.py

engine-transformers: $(VENV)/.dev ## Only transformers serve
	$(ENGINES_SETUP) transformers
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines/test_transformers_serve.py

engine-llamacpp: $(VENV)/.dev ## Only llama.cpp; builds from source the first time, 20 minutes on two quiet cores
	$(ENGINES_SETUP) llamacpp
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines/test_llamacpp.py

engine-dflash: $(VENV)/.dev ## Only the speculative loop of z-lab's released package
	$(ENGINES_SETUP) dflash
	nice -n $(ENGINES_NICE) env $(ENGINES_PYTEST) tests/engines/test_reference_loop.py
