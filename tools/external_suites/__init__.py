"""External suites: other projects' tests of the OpenAI API, run against a real server with the demo model.

The generated suite of openai-python is only in its source distribution, which is downloaded when it is needed;
langchain-tests is a package. expected_failures.toml lists each test that fails, with the reason. No other test may
fail.
"""
