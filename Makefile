# Every job sets up what it needs first; see kompute_dml/toolchain/bootstrap.py.
#   PYTHON=python3.12       another interpreter for .venv
#   KOMPUTE_DML_KP=stock    kp as it is published, without the fixes

PYTHON ?= python3
setup := @$(PYTHON) kompute_dml/toolchain/bootstrap.py
run := @.venv/bin/python -m

.PHONY: help demo test test-all validate vendor-compilers lint bench docs wheel wheel-windows wheel-macos wine clean

help:
	@echo "make demo      classifies files with an int8 model on the Vulkan device, and checks it"
	@echo "make test      lint, types, all tests on one driver, and samples elsewhere;"
	@echo "               ARGS='-k clip' runs the tests of one operator only"
	@echo "make test-all  all tests on both drivers with both states of kp, and under validation"
	@echo "make validate  the tests under the Khronos validation layer"
	@echo "make vendor-compilers  compiles for other vendors' GPUs, without them"
	@echo "make lint      ruff and mypy"
	@echo "make bench     the benchmarks; ARGS='--help' shows the options"
	@echo "make docs      the pages as a site, in build/site"
	@echo "make wheel     dist/kompute_dml-*.whl, which needs no compiler where it is installed"
	@echo "make wheel-windows, wheel-macos  the same for Windows on x86-64 and macOS on arm64"
	@echo "make wine      the wheel for Windows, under wine; it takes Debian's wine64, wine and xvfb"
	@echo "make clean     removes all that was made, .venv included"

demo:
	$(setup) demo
	@.venv/bin/python examples/demo/demo.py $(ARGS)

test:
	$(setup) test
	$(run) kompute_dml.toolchain.check test $(ARGS)

test-all:
	$(setup) validate
	$(run) kompute_dml.toolchain.check test-all $(ARGS)

validate:
	$(setup) validate
	$(run) kompute_dml.toolchain.check validate $(ARGS)

vendor-compilers:
	$(setup) bench
	@PYTHONPATH=.:tests .venv/bin/python tests/metal.py
	@PYTHONPATH=.:tests .venv/bin/python tests/vendor_compilers.py $(ARGS)

lint:
	$(setup) lint
	$(run) kompute_dml.toolchain.check lint

bench:
	$(setup) bench
	$(run) kompute_dml bench $(ARGS)

docs:
	$(setup) docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet
	@echo "build/site/index.html; to search it: python3 -m http.server --directory build/site"

wheel:
	$(setup) lint
	$(run) kompute_dml.toolchain wheel $(ARGS)

wheel-windows wheel-macos: wheel-%:
	$(setup) lint
	$(run) kompute_dml.toolchain wheel --target $* $(ARGS)

wine: wheel-windows
	@.venv/bin/python tests/wine.py

clean:
	rm -rf .venv .cache build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf kompute_dml/spirv kompute_dml/onnxruntime/libkompute_dml_provider*
	find . -name __pycache__ -prune -exec rm -rf {} +
