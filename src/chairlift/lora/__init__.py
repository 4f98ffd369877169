"""LoRARequest under the module name of vLLM, so that only the package of an import changes."""
