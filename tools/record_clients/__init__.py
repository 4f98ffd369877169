"""Records the requests that agents and chat programs send to a model server, for tests/contract/recorded_sessions.

A program runs against a stand-in server, which answers with calls of the program's own tools and then with a text. A
session is stored without the program's prose: a placeholder keeps a text's length and its special characters.
"""
