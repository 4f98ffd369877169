"""External suites: tests with other projects' clients and test suites of the OpenAI API, run against real servers.

The generated suite of openai-python is only in its source distribution, which is downloaded when it is needed;
langchain-tests is a package; schemathesis generates requests from the server's OpenAPI document. The tests of the
other clients are our own: tests/contract/clients has them. Coding agents run by themselves, with a task of our own.
expected_failures.toml lists each test that fails, with the reason. No other test may fail.
"""
