"""Contract suites: other people's tests of OpenAI's API, run against a real server over the demo model.

openai-python's generated suite comes with its source distribution, which is fetched when it is needed; langchain-tests
is a package. What does not pass stands in expected_failures.toml by name, with its reason, and nothing else may fail.
"""
