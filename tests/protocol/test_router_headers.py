"""The names of a router's headers, as the HTTP parser writes names: in lower case."""

from chairlift.protocol import router_headers


def test_names_are_lower_case_and_differ() -> None:
    names = [value for name, value in vars(router_headers).items() if name.endswith("_HEADER")]
    assert len(set(names)) == 4 and all(name == name.lower() and name.startswith(b"x-") for name in names)
