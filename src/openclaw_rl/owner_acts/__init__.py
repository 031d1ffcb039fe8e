"""Acts of the owner: the functions behind both the commands and the page, each with a row in the audit."""
