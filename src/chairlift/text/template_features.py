"""offers_direct_answer: whether a chat template has the model call a tool of its own."""


def offers_direct_answer(template: str) -> bool:
    """Return whether a template has the model call a tool that no request offers where it needs none (Command-R).

    A grammar of the request's tools would make the model call one of these instead.
    """
    return "directly-answer" in template
