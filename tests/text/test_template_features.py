"""offers_direct_answer: a template of Command R has the model call a tool that no request offers."""

from chairlift.text.template_features import offers_direct_answer


def test_a_template_that_names_the_tool_offers_direct_answers() -> None:
    assert offers_direct_answer("Use 'directly-answer' where no tool is needed.{{ messages }}")
    assert not offers_direct_answer("{{ messages }}{{ tools }}")
