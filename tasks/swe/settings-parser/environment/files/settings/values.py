"""Values of settings."""

TRUE, FALSE = {"yes", "true", "on"}, {"no", "false", "off"}


def read_value(text):
    """Return a value as a truth value, a whole number or a text; quotes around a text are left out."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    if text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    try:
        return int(text)
    except ValueError:
        return text
